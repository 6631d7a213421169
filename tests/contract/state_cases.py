"""Operators' actions on a running engine: they pause it, put it to sleep, change its weights, profile it.

`test_engine_contract.py` has loaded the engines, and runs these.
"""

import asyncio
from pathlib import Path

import pytest

from app.engines.base import Pauser, Profiler, Sleeper, Weights
from app.errors import EngineFailed, RequestError, XylemError
from app.messages.wanted import WeightsSource
from tests.contract.conftest import TURNED
from tests.contract.subject import Answer, Subject
from tests.stack import free_port

PROMPT = "The weights of a model decide what it says about"
LONG = 80  # tokens of an answer that is caught in its middle
can_change = pytest.mark.parametrize("subject", ["mock", "vllm", "sglang"], indirect=True, scope="module")


def written(folder: Path) -> list[str]:
    return [file.name for file in folder.rglob("*") if file.stat().st_size]


def control(subject: Subject) -> tuple[Pauser, Sleeper, Weights]:
    engine = subject.engine
    assert isinstance(engine, Pauser)
    assert isinstance(engine, Sleeper)
    assert isinstance(engine, Weights)
    return engine, engine, engine


async def begun(subject: Subject, found: Answer, tokens: int = LONG) -> "asyncio.Task[None]":
    """A running answer with some output, which goes on filling `found`."""

    async def fill() -> None:
        async for output in subject.stream(PROMPT, max_tokens=tokens, ignore_eos=True):
            found.outputs.append(output)

    task = asyncio.create_task(fill())
    async with asyncio.timeout(30):
        while len(found.tokens) < 3:
            await asyncio.sleep(0.001)
    return task


@can_change
async def test_what_pause_keeps_goes_on_unchanged(subject: Subject) -> None:
    """Nothing is made while it is paused, and a new request waits."""
    pauser, _, _ = control(subject)
    expected_tokens = (await subject.answer(PROMPT, max_tokens=LONG, ignore_eos=True)).tokens
    answer = Answer()
    task = await begun(subject, answer)
    await pauser.pause("keep")
    later = asyncio.create_task(subject.answer(PROMPT, max_tokens=2))
    await asyncio.sleep(0.1)
    token_count = len(answer.tokens)
    await asyncio.sleep(0.3)
    assert len(answer.tokens) == token_count < LONG
    assert not later.done()
    await pauser.resume()
    await task
    assert answer.tokens == expected_tokens
    assert len((await later).tokens) == 2


@can_change
async def test_pause_waits_for_what_runs(subject: Subject) -> None:
    pauser, _, _ = control(subject)
    answer = Answer()
    task = await begun(subject, answer)
    await pauser.pause("wait")
    assert len(answer.tokens) == LONG
    await task
    await pauser.resume()
    assert (await subject.answer(PROMPT, max_tokens=2)).finish == "length"


@can_change
async def test_pause_aborts_what_runs(subject: Subject) -> None:
    pauser, _, _ = control(subject)
    answer = Answer()
    task = await begun(subject, answer, 400)
    await pauser.pause("abort")
    await task
    assert answer.finish == "abort"
    await pauser.resume()
    assert (await subject.answer(PROMPT, max_tokens=2)).finish == "length"


@can_change
@pytest.mark.parametrize("level", [1, 2])
async def test_a_sleeping_engine_refuses_and_a_woken_one_answers(subject: Subject, level: int) -> None:
    """The weights are loaded again first after level 2."""
    _, sleeper, weights = control(subject)
    expected_tokens = (await subject.answer(PROMPT)).tokens
    await sleeper.sleep(level, "abort")
    assert await sleeper.is_sleeping()
    with pytest.raises(EngineFailed, match="sleeps"):
        await subject.answer(PROMPT)
    with pytest.raises(RequestError, match="The weights sleep"):
        await weights.update_weights("", None)
    with pytest.raises(RequestError, match="sleeps"):
        await subject.engine.resume()  # type: ignore[attr-defined]
    assert not await sleeper.wake(["weights"])
    if level > 1:
        await weights.update_weights("", None)
    assert await sleeper.wake()
    assert not await sleeper.is_sleeping()
    assert isinstance(subject.engine, Pauser)
    await subject.engine.resume()
    assert (await subject.answer(PROMPT)).tokens == expected_tokens


@can_change
async def test_an_unknown_tag_is_refused(subject: Subject) -> None:
    _, sleeper, _ = control(subject)
    with pytest.raises(RequestError, match="bed"):
        await sleeper.wake(["bed"])


@can_change
async def test_other_weights_answer_otherwise_and_use_no_older_kv(subject: Subject, other_weights: Path) -> None:
    pauser, _, weights = control(subject)
    prompt = PROMPT * 12  # some blocks
    before = (await subject.answer(prompt)).tokens
    with pytest.raises(EngineFailed, match="paused"):
        await weights.update_weights("v2", WeightsSource(str(other_weights)))
    await pauser.pause("wait")
    await weights.update_weights("v2", WeightsSource(str(other_weights)))
    await pauser.resume()
    first = await subject.answer(prompt)
    assert first.cached_tokens == 0
    assert first.tokens != before
    assert (await subject.answer(prompt)).tokens == first.tokens
    await pauser.pause("wait")
    await weights.update_weights("", None)
    await pauser.resume()
    assert (await subject.answer(prompt)).tokens == before


@can_change
async def test_a_kept_answer_goes_on_with_the_new_weights(subject: Subject, other_weights: Path) -> None:
    """A loop of reinforcement learning wants this: the tokens so far stay, and all KV is computed again."""
    pauser, _, weights = control(subject)
    expected_tokens = (await subject.answer(PROMPT, max_tokens=LONG, ignore_eos=True)).tokens
    answer = Answer()
    task = await begun(subject, answer)
    await pauser.pause("keep")
    await asyncio.sleep(0.1)
    token_count = len(answer.tokens)
    await weights.update_weights("v2", WeightsSource(str(other_weights)))
    await pauser.resume()
    await task
    assert answer.tokens[:token_count] == expected_tokens[:token_count]
    assert answer.tokens != expected_tokens
    assert answer.finish == "length"
    await pauser.pause("wait")
    await weights.update_weights("", None)
    await pauser.resume()


@can_change
async def test_weights_that_are_not_there_are_an_error(subject: Subject, tmp_path: Path) -> None:
    pauser, _, weights = control(subject)
    await pauser.pause("wait")
    with pytest.raises(XylemError):
        await weights.update_weights("v3", WeightsSource(str(tmp_path / "nothing")))
    await weights.update_weights("", None)
    await pauser.resume()
    assert (await subject.answer(PROMPT, max_tokens=2)).finish == "length"


@can_change
async def test_profiles_are_written_once_started(subject: Subject, profiles: Path) -> None:
    engine = subject.engine
    assert isinstance(engine, Profiler)
    with pytest.raises(RequestError, match="does not run"):
        await engine.stop_profile()
    await engine.start_profile("mine")
    with pytest.raises(RequestError, match="already"):
        await engine.start_profile()
    await subject.answer(PROMPT, max_tokens=1)
    await engine.stop_profile()
    with pytest.raises(RequestError, match="does not run"):
        await engine.stop_profile()
    if subject.name != "mock":
        assert any(name.startswith("mine") for name in written(profiles))


@pytest.mark.parametrize("subject", ["sglang"], indirect=True, scope="module")
async def test_weights_come_through_a_transfer_group(subject: Subject, other_weights: Path) -> None:
    """The tensor that differs, from a trainer in this process. vLLM's groups need accelerators."""
    import torch
    from safetensors.torch import load_file
    from sglang.srt.utils.common import init_custom_process_group

    pauser, _, weights = control(subject)
    before = (await subject.answer(PROMPT)).tokens
    await pauser.pause("wait")
    await weights.update_weights("v2", WeightsSource(str(other_weights)))
    await pauser.resume()
    expected_tokens = (await subject.answer(PROMPT)).tokens
    await pauser.pause("wait")
    await weights.update_weights("", None)
    tensor, port = load_file(other_weights / "model.safetensors")[TURNED], free_port()

    def train() -> None:
        group = init_custom_process_group(
            backend="gloo", init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=0, group_name="trainer"
        )
        torch.distributed.broadcast(tensor, src=0, group=group)

    joins = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2, "backend": "gloo"}
    comes = {"names": [TURNED], "dtypes": [str(tensor.dtype).removeprefix("torch.")], "shapes": [list(tensor.shape)]}
    group_name = {"group_name": "trainer"}
    with pytest.raises(RequestError, match="colour"):
        await weights.update_weights("v3", WeightsSource("", None, {"colour": 1}))
    training = asyncio.create_task(asyncio.to_thread(train))
    await weights.update_weights("v3", WeightsSource("", joins | group_name, comes | group_name))
    await training
    await pauser.resume()
    assert (await subject.answer(PROMPT)).tokens == expected_tokens != before
    await pauser.pause("wait")
    await weights.update_weights("", None)
    await pauser.resume()
    assert (await subject.answer(PROMPT)).tokens == before
