"""The adapter's own decisions, on the double: handoffs, aborts, what is checked of what the engine gives."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.engines.base import Configured, GenerateRequest, StepOutput
from app.engines.trtllm.steering import Steering
from app.errors import EngineFailed, HandoffFailed, RequestError, SettingsError
from app.ids import RunId
from app.kv.blocks import chain, root
from app.kv.hybrid_ledger import HybridLedger
from app.kv.ledger import Ledger
from app.messages.handoff import KvHandle, Rendezvous
from app.messages.job import Grammar, PartialOutput, Sampling
from app.messages.lease import CacheGroup
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from tests.contract.test_trtllm_contract import replayed
from tests.shallow import shallow_model
from tests.trtllm.double import installed
from tests.trtllm.generated import Package
from tests.trtllm.model import MOCK, WINDOWS
from workers.engine.warm_up import warm_up

SMALL = {"env": {MOCK: json.dumps({"speedup": 50.0, "total_blocks": 64})}}
PROMPT = [300 + i for i in range(70)]


@pytest.fixture
def package() -> Iterator[Package]:
    with installed() as installation:
        yield installation


@asynccontextmanager
async def engine(mock: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Any]:
    args = {"env": {MOCK: json.dumps({"speedup": 50.0, "total_blocks": 64} | (mock or {}))}} | settings.pop("args", {})
    loaded_engine: Any = create_engine(Pool(model="m", engine="trtllm", max_model_len=1024, args=args, **settings))
    try:
        loaded_engine.info = await loaded_engine.start()
        yield loaded_engine
    finally:
        await loaded_engine.close()


def ask(id_: str, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(RunId(id_), PROMPT, Sampling(**{"max_tokens": 6, "temperature": 0.0} | sampling))


async def answer(made: Any, request: GenerateRequest) -> list[StepOutput]:
    return [output async for output in made.generate(request)]


@asynccontextmanager
async def handed_over(asked: GenerateRequest) -> AsyncIterator[tuple[Any, GenerateRequest]]:
    """An engine that decodes, and what it is asked behind a prefill."""
    async with engine(role="prefill") as computes, engine(role="decode") as decodes:
        prefill_result = await computes.prefill(asked)
        parts = [PartialOutput(prefill_result.output.tokens, len(prefill_result.output.text))]
        yield decodes, replace(asked, id=RunId("behind"), begun=parts, handoff=prefill_result.handoff)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("change", ["expired", "other model", "room", "no token", "two choices", "not ours", "gone"])
async def test_a_handoff_that_cannot_be_taken_is_refused_before_any_output(change: str) -> None:
    async with handed_over(ask("a")) as (decodes, request):
        handoff = request.handoff
        assert isinstance(handoff, KvHandle)
        bad = {
            "expired": replace(request, handoff=replace(handoff, expires=0.0)),
            "other model": replace(
                request,
                handoff=replace(
                    handoff, params=handoff.params | {"compatible": handoff.params["compatible"] | {"model": "x"}}
                ),
            ),
            "room": replace(request, handoff=Rendezvous("h", 1, 2)),
            "no token": replace(request, begun=[]),
            "two choices": replace(request, sampling=replace(request.sampling, n=2), begun=request.begun * 2),
            "not ours": replace(request, handoff=replace(handoff, params={"kv_transfer_params": {}})),
            "gone": replace(request, handoff=replace(handoff, params=handoff.params | {"state": "AAAA"})),
        }
        with pytest.raises(HandoffFailed):
            await answer(decodes, bad[change])
        assert await answer(decodes, request)


@pytest.mark.usefixtures("package")
async def test_pools_that_hand_nothing_over_say_so() -> None:
    async with engine() as loaded_engine:
        with pytest.raises(EngineFailed):
            await loaded_engine.prefill(ask("a"))
        with pytest.raises(HandoffFailed):
            await answer(loaded_engine, replace(ask("b"), handoff=KvHandle("h", 9e9, 1, {})))


@pytest.mark.usefixtures("package")
async def test_a_worker_that_computes_prompts_warms_up_and_keeps_no_kv_for_anybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would come for it. The engine's log has our level."""
    monkeypatch.delenv("TLLM_LOG_LEVEL", raising=False)
    monkeypatch.setenv("XYLEM_LOG_LEVEL", "warning")
    loaded_engine = create_engine(Pool(model="m", engine="trtllm", max_model_len=1024, role="prefill", args=SMALL))
    try:
        assert isinstance(loaded_engine, Configured)
        assert loaded_engine.configuration()["LLM"]["max_seq_len"] == 1024  # what `xylem worker --show-config` prints
        info = await loaded_engine.start()
        await warm_up(loaded_engine, info)
        stats = loaded_engine.stats()
        assert (stats.prefill_tokens, stats.running, stats.lent_blocks) == (4 * info.block_size, 0, 0)
    finally:
        await loaded_engine.close()
    assert os.environ["TLLM_LOG_LEVEL"] == "WARNING"


@pytest.mark.usefixtures("package")
async def test_several_choices_are_computed_where_they_are_answered() -> None:
    async with engine(role="prefill") as loaded_engine:
        with pytest.raises(HandoffFailed):
            await loaded_engine.prefill(ask("a", n=2))


@pytest.mark.usefixtures("package")
async def test_an_answer_of_one_token_is_over_with_its_prefill() -> None:
    async with engine(role="prefill") as prefiller:
        first_result = await prefiller.prefill(ask("a", max_tokens=1))
        assert (first_result.output.finish, first_result.handoff, prefiller.stats().lent_blocks) == ("length", None, 0)
        second_result = await prefiller.prefill(ask("b"))
        assert second_result.handoff is not None
        assert "first_gen_tokens" not in second_result.handoff.params  # no task carries a part of an answer


async def test_an_abort_waits_for_kv_that_is_on_its_way(package: Package) -> None:
    async with handed_over(ask("a", max_tokens=500, ignore_eos=True)) as (decodes, request):
        model, was_stopped = package.models[-1], asyncio.Event()
        come, mock_abort = asyncio.Event(), model.mock.abort
        generate = model.mock.generate

        async def late(asked: GenerateRequest) -> AsyncIterator[StepOutput]:
            await come.wait()
            async for output in generate(asked):
                yield output

        async def abort(id_: RunId) -> None:
            was_stopped.set()
            await mock_abort(id_)

        model.mock.generate, model.mock.abort = late, abort
        waits = asyncio.create_task(answer(decodes, request))
        await asyncio.sleep(0.01)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert not was_stopped.is_set()
        come.set()
        await asyncio.wait_for(was_stopped.wait(), 5)
        assert decodes.stats().running == 0


@pytest.mark.usefixtures("package")
async def test_an_answer_that_begins_otherwise_is_not_passed_on() -> None:
    async with engine() as loaded_engine:
        grammar = Grammar("regex", "[0-9]{4}")
        with pytest.raises(EngineFailed):
            await answer(loaded_engine, replace(ask("a", grammar=grammar), begun=[PartialOutput([300], 1)]))
        assert (await answer(loaded_engine, ask("b", grammar=grammar)))[-1].finish == "stop"


@pytest.mark.usefixtures("package")
async def test_a_stop_token_does_not_come_before_min_tokens_from_whoever_makes_the_first_one() -> None:
    async with engine(role="prefill") as loaded_engine:
        likeliest = (await loaded_engine.prefill(ask("a"))).output.tokens
        banned_result = await loaded_engine.prefill(ask("b", min_tokens=2, stop_token_ids=tuple(likeliest)))
        assert banned_result.output.tokens != likeliest
        assert banned_result.output.finish is None


@pytest.mark.usefixtures("package")
async def test_penalties_count_the_answer_and_not_the_prompt_also_of_an_answer_that_goes_on() -> None:
    first, second = PROMPT[0], PROMPT[1]
    settings = {"logit_bias": {first: 100.0, second: 99.5}, "presence_penalty": 1.0, "ignore_eos": True}
    async with engine() as loaded_engine:
        whole = [t for o in await answer(loaded_engine, ask("whole", **settings)) for t in o.tokens]
        assert whole[:2] == [first, second]
        rest = await answer(loaded_engine, replace(ask("rest", **settings), begun=[PartialOutput(whole[:1])]))
        assert [t for o in rest for t in o.tokens] == whole[1:]


async def test_the_engines_errors_are_ours(package: Package) -> None:
    async with engine() as loaded_engine:
        model = package.models[-1]
        model.mock.generate = None
        with pytest.raises(EngineFailed, match="NoneType"):
            await answer(loaded_engine, ask("a"))
        model.longest = 10
        with pytest.raises(RequestError, match="max_seq_len"):
            await answer(loaded_engine, ask("b"))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("args", [{"no_such_argument": 1}, {"kv_cache_config": {"dtype": 3}}])
async def test_arguments_that_the_engine_refuses_stop_the_worker_by_name(args: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"no_such_argument|dtype"):
        async with engine(args=args):
            pass


async def told(made: Any, wanted: Callable[[Ledger], bool]) -> None:
    """Waits until the index would have what is wanted of the engine's first rank."""
    async with asyncio.timeout(10):
        while True:
            ledger = Ledger(32)
            ledger.apply(await replayed(made.kv_events()[0]))
            if wanted(ledger):
                return
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("package")
async def test_an_evicted_prompt_is_in_the_hosts_part_of_the_index_and_comes_from_there() -> None:
    blocks = set(chain(root(), PROMPT[:64], 32))
    async with engine({"total_blocks": 32}, tiers={"host_gb": 1}) as loaded_engine:
        assert loaded_engine.info.tier_block_bytes > 0
        first_outputs = await answer(loaded_engine, ask("a"))
        await told(loaded_engine, lambda ledger: blocks <= {*ledger.blocks()} and not ledger.host.blocks())
        await answer(loaded_engine, replace(ask("other"), prompt=[1000 + i for i in range(1000)]))  # fills it
        await told(loaded_engine, lambda ledger: blocks == {*ledger.host.blocks()} and not blocks & {*ledger.blocks()})
        again = await answer(loaded_engine, ask("again"))
        assert again[0].cached_tokens == 64
        assert [output.tokens for output in again] == [output.tokens for output in first_outputs]
        await told(loaded_engine, lambda ledger: blocks <= {*ledger.blocks()} and not blocks & {*ledger.host.blocks()})


@pytest.mark.usefixtures("package")
async def test_autodeploy_is_another_class() -> None:
    async with engine(args={"backend": "autodeploy", "pipeline_parallel_size": 2}) as loaded_engine:
        assert loaded_engine._loaded.llm.autodeploy
        assert (await answer(loaded_engine, ask("a")))[-1].finish


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("args", "kinds"),
    [({}, 5), ({"guided_decoding_backend": "llguidance"}, 2), ({"guided_decoding_backend": None}, 0),
     ({"speculative_config": {"decoding_type": "NGram"}}, 0)],
)  # fmt: skip
async def test_an_engine_names_the_grammars_that_go_on_in_their_middle(args: dict[str, Any], kinds: int) -> None:
    env = {"env": {MOCK: json.dumps({"total_blocks": 64})}}
    loaded_engine = create_engine(Pool(model="m", engine="trtllm", max_model_len=1024, args=env | args))
    assert len((await loaded_engine.start()).grammars) == kinds
    await loaded_engine.close()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("config", "size"),
    [({"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}, 737_280),
     ({"text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}}, 8_192),
     ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 2_248_704), ({}, 1)],
)  # fmt: skip
def test_the_size_of_a_block_is_that_of_all_layers(config: dict[str, Any], size: int) -> None:
    from app.engines.trtllm.handoff import block_bytes

    assert block_bytes(config, 32, "auto") == size


class Logits:
    """A tensor, as far as it is needed."""

    def __init__(self, size: int) -> None:
        self.values = [1.0] * size

    def fill_(self, value: float) -> None:
        self.values = [value] * len(self.values)

    def __setitem__(self, key: Any, value: float) -> None:
        last = key[-1]
        for index in last if isinstance(last, list) else [last]:
            self.values[index] = value


def test_steering_forces_what_is_out_and_bans_what_would_end_too_early() -> None:
    steering, rows = Steering([2], [0, 1], until=2, count=0), []
    for _ in range(3):
        logits = Logits(4)
        steering(1, logits, [[]], None, None)
        rows.append(logits.values)
    never = float("-inf")
    assert rows == [[never, never, 0.0, never], [never, never, 1.0, 1.0], [1.0] * 4]
    apart, logits = Steering([], [0], until=1, count=1), Logits(2)
    apart(1, logits, [[]], None)
    assert logits.values == [1.0, 1.0]


@pytest.mark.usefixtures("package")
async def test_groups_of_layers_are_asked_for_and_a_prompt_resumes_where_all_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events of V2 at its beginning are read before the worker registers, and told again with what follows."""
    monkeypatch.setenv(WINDOWS, "[64, 1024]")
    async with engine(args={"kv_cache_config": {"max_attention_window": [64, 1024]}}) as loaded_engine:
        assert loaded_engine.info.groups == (CacheGroup(0, "window", 32, 64, 32), CacheGroup(1, "all", 32))
        assert loaded_engine.info.unindexed == ""
        await answer(loaded_engine, ask("a"))
        ledger = HybridLedger(loaded_engine.info.groups)
        while not len(ledger):
            ledger.clear()
            ledger.apply(await replayed(loaded_engine.kv_events()[0]))
            ledger.take()
        assert sorted(ledger.blocks()) == sorted(chain(root(), PROMPT[:64], 32))
        assert (await answer(loaded_engine, ask("b")))[0].cached_tokens == 64


@pytest.mark.usefixtures("package")
async def test_a_model_with_states_is_placed_by_load_and_says_why(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_next", "vocab_size": 49152, "layer_types": ["linear_attention", "full_attention"]}
    for file in shallow_model().glob("token*"):
        (tmp_path / file.name).symlink_to(file.resolve())
    (tmp_path / "config.json").write_text(json.dumps(config))
    async with engine(path=tmp_path) as loaded_engine:
        assert loaded_engine.info.groups == ()
        assert "states" in loaded_engine.info.unindexed
