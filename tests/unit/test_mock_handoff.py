"""Handing a prompt over changes nothing that a client sees; without NIXL, only the time of it passes."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from app.engines.base import Disaggregated, Prefilled
from app.engines.mock.engine import MockEngine
from app.errors import HandoffFailed, RequestError, SettingsError
from app.messages.handoff import KvHandle
from app.messages.job import Grammar, PartialOutput
from tests.disaggregated import again, begun, behind, engine, idle, request, run, shown, stats_become
from tests.present import present
from tests.unit.test_mock_engine import pool

SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {"logprobs": 3},
    {"temperature": 0.7, "frequency_penalty": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.3},
    {"logit_bias": {400: 30.0, 401: 29.0}, "frequency_penalty": 1.0},
    {"ignore_eos": False, "min_tokens": 10, "stop_token_ids": (5,)},
    {"max_tokens": 2},
    {"grammar": Grammar("regex", "[0-9]{4}-[0-9]{2}"), "temperature": 1.0, "seed": 7},
]


async def test_the_mock_engine_disaggregates() -> None:
    """The engine has the capability, and says how large a block is."""
    async with engine() as mock_engine:
        assert isinstance(mock_engine, Disaggregated)
        assert mock_engine._rooms.meets_at == ""


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
async def test_an_answer_is_the_same_after_a_handoff(sampling: dict[str, Any]) -> None:
    """Tokens, text, finish and logprobs, whatever was asked of the sampler."""
    original = request(**sampling)
    async with engine() as p, engine() as d, engine() as alone:
        prefill = await p.prefill(original)
        first = present(prefill.output)
        assert len(first.tokens) == 1
        outputs = await run(d, behind(original, prefill))
        assert shown([first, *outputs]) == shown(await run(alone, original))
        assert [o.pulled and o.pulled.tokens for o in outputs] == [100] + [None] * (len(outputs) - 1)
        assert (d.stats().pulled_tokens, d.stats().prefill_tokens) == (100, 0)
        await stats_become(p, idle)
        assert idle(d.stats())


async def test_several_choices_find_the_prompt_that_came_once() -> None:
    """Nothing is given out by the side that computes; the others find the prompt in the cache."""
    original = request(n=3, temperature=1.0)
    async with engine() as p, engine() as d, engine() as alone:
        prefill = await p.prefill(original)
        assert prefill.output is None
        outputs, expected_outputs = await run(d, behind(original, prefill)), await run(alone, original)
        assert [shown(outputs, i) for i in range(3)] == [shown(expected_outputs, i) for i in range(3)]
        assert d.stats().pulled_tokens == 100
        assert idle(d.stats())


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("taken", [1, 2, 3])
async def test_a_stop_string_across_the_border_ends_the_answer(taken: int, include: bool) -> None:
    """Text that may begin a stop string is held back before the handoff, and found behind it."""
    async with engine() as p, engine() as d:
        plain = await run(p, request())
        border = len("".join(o.text for o in plain[:taken]))
        text = "".join(o.text for o in plain)
        original = request(stop=(text[border - 2 : border + 2],), include_stop=include)
        expected_outputs = await run(p, original)
        prefill = await p.prefill(again(original))
        first = present(prefill.output)
        assert first.text == expected_outputs[0].text
        assert shown([first, *await run(d, behind(original, prefill))]) == shown(expected_outputs)


@pytest.mark.parametrize("first", [1, 5, 40])
@pytest.mark.parametrize("text_len", [0, 3, None])
async def test_an_answer_goes_on_behind_what_has_begun(first: int, text_len: int | None) -> None:
    """No token, and no character, comes twice; the prompt is computed here if there is no handoff."""
    original = request(max_tokens=60, temperature=1.0)
    async with engine() as mock_engine:
        whole = await run(mock_engine, original)
        out = begun(*whole[:first])
        if text_len is not None:
            out = PartialOutput(out.tokens, text_len)
        rest = await run(mock_engine, again(original, begun=[out]))
        assert [t for o in rest for t in o.tokens] == [t for o in whole[first:] for t in o.tokens]
        assert "".join(o.text for o in rest) == "".join(o.text for o in whole)[out.text_len :]
        assert rest[-1].finish == "length"
        assert rest[0].cached_tokens <= 100


async def test_more_text_out_than_is_made_again_is_left_out() -> None:
    """The engine that began held back less than this one does."""
    async with engine() as mock_engine:
        whole = await run(mock_engine, request())
        text = "".join(o.text for o in whole)
        original = request(stop=("x" * 30,))
        rest = await run(mock_engine, again(original, begun=[begun(*whole[:4])]))
        assert "".join(o.text for o in rest) == text[len("".join(o.text for o in whole[:4])) :]


@pytest.mark.parametrize("ending", [{"max_tokens": 1}, {"stop_token_ids": tuple(range(2048))}])
async def test_an_answer_of_one_token_is_not_handed_over(ending: dict[str, Any]) -> None:
    """Its first output has the finish, and nothing is kept."""
    original = request(**ending)
    async with engine() as p, engine() as alone:
        prefill = await p.prefill(original)
        assert idle(p.stats())
        assert prefill == Prefilled((await run(alone, original))[0], None)


@pytest.mark.alone
async def test_blocks_are_lent_no_longer_than_a_transfer_takes() -> None:
    """4 blocks at 100 KB/s are 0.16 s; the holder can't be told, so that is how long it keeps them."""
    async with engine(gb_per_s=1e-4, speedup=1.0) as p:
        await p.prefill(request())
        assert (p.stats().lent_blocks, p.stats().used_blocks) == (4, 4)
        began = time.perf_counter()
        await stats_become(p, idle)
        assert time.perf_counter() - began == pytest.approx(0.16, abs=0.05)


@pytest.mark.alone
async def test_a_pull_takes_its_time_while_others_decode() -> None:
    """A pull holds blocks, and no step waits for it."""
    async with engine() as p, engine(gb_per_s=4e-5, speedup=1.0, step_ms=1.0) as d:
        decoding = d.generate(request(first=900, max_tokens=900))
        await anext(decoding)
        original = request()
        pulling = asyncio.create_task(run(d, behind(original, await p.prefill(original))))
        await stats_become(d, lambda stats: stats.running == 2)
        began, steps = time.perf_counter(), 0
        while d.stats().pulled_tokens == 0:
            await anext(decoding)
            steps += 1
        took = time.perf_counter() - began
        assert took == pytest.approx(0.4, rel=0.3)
        assert steps > took / 0.004
        assert present((await pulling)[0].pulled).seconds == pytest.approx(0.41, rel=0.3)
        await decoding.aclose()


async def test_a_cached_prefix_is_not_pulled() -> None:
    """Only the blocks that this engine doesn't have."""
    async with engine() as p, engine() as d:
        await run(d, request(64))
        original = request(100)
        outputs = await run(d, behind(original, await p.prefill(original)))
        pull = present(outputs[0].pulled)
        assert (outputs[0].cached_tokens, pull.tokens, pull.size) == (64, 36, 2 * 4096)


def _spoilt(lent: KvHandle, change: dict[str, Any]) -> KvHandle:
    own = {key: value for key, value in change.items() if key in ("holder", "expires", "tokens")}
    params = {key: value for key, value in change.items() if key not in own}
    return replace(lent, params=lent.params | params, **own)


@pytest.mark.parametrize(
    "change",
    [
        {"expires": 1.0},
        {"block_size": 16},
        {"block_bytes": 128},
        {"layout": "other"},
        {"agent": "AAAA"},
        {"holder": "mock-of-another-life"},
        {"tokens": 99},
        {"blocks": [1]},
        {"blocks": "all"},
    ],
    ids=str,
)
async def test_what_does_not_fit_is_refused_before_any_output(change: dict[str, Any]) -> None:
    """Nothing is held afterwards; the request goes on without the handoff."""
    original = request()
    async with engine() as p, engine() as d:
        prefill = await p.prefill(original)
        again_ = behind(original, replace(prefill, handoff=_spoilt(present(prefill.handoff), change)))
        with pytest.raises(HandoffFailed):
            await run(d, again_)
        assert idle(d.stats())
        assert len(await run(d, replace(again_, handoff=None))) == 11


async def test_a_lease_that_ends_during_the_pull_is_refused() -> None:
    """Other KV may lie there by then."""
    original = request()
    async with engine(lease_s=0.1) as p, engine(gb_per_s=1e-4, speedup=1.0) as d:
        prefill = await p.prefill(original)
        with pytest.raises(HandoffFailed, match="has expired"):
            await run(d, behind(original, prefill))
        assert idle(d.stats())


async def test_aborting_a_pull_frees_its_blocks() -> None:
    """The abort comes before the blocks are there, and frees them once."""
    original = request()
    async with engine() as p, engine(gb_per_s=1e-6, speedup=1.0) as d:
        pulling = behind(original, await p.prefill(original))
        task = asyncio.create_task(run(d, pulling))
        await stats_become(d, lambda stats: stats.used_blocks == 4)
        await d.abort(pulling.id)
        assert (await task)[-1].finish == "abort"
        await stats_become(d, idle)


async def test_cancelling_a_prefill_frees_its_blocks() -> None:
    """Nobody is left to take the prompt's blocks."""
    async with engine(speedup=1.0, prefill_tokens_per_s=100.0) as p:
        task = asyncio.create_task(p.prefill(request()))
        await stats_become(p, lambda stats: stats.used_blocks > 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert idle(p.stats())


async def test_a_full_holder_computes_again_when_leases_end() -> None:
    """Lent blocks make others wait, and their end wakes them."""
    async with engine(total_blocks=32, gb_per_s=1e-4, speedup=1.0, step_ms=1.0) as p:
        await p.prefill(request(900))
        assert p.stats().lent_blocks == 29
        assert (await asyncio.wait_for(p.prefill(request(900, first=700)), 5)).handoff is not None


async def test_each_rank_lends_its_own_blocks() -> None:
    """Each takes into its own as well."""
    original = request(rank=1)
    async with engine(ranks=2) as p, engine(ranks=2) as d:
        prefill = await p.prefill(original)
        assert present(prefill.handoff).params["rank"] == 1
        assert len(await run(d, again(behind(original, prefill), rank=0))) == 11


async def test_an_id_in_use_is_refused_for_prefills_too() -> None:
    """Prefills and answers share one space of ids."""
    async with engine(speedup=1.0) as mock_engine:
        original = request()
        decoding = mock_engine.generate(original)
        await anext(decoding)
        with pytest.raises(RequestError):
            await mock_engine.prefill(original)
        await decoding.aclose()


@pytest.mark.parametrize("bad", [{"shape": "both"}, {"block_bytes": 100}, {"lease_s": 0}, {"nixl": 1}, {"port": 1}])
def test_a_bad_handoff_argument_is_named(bad: dict[str, Any]) -> None:
    """Every other argument is named in the same way."""
    [key] = bad
    with pytest.raises(SettingsError, match=rf"args\.handoff\.{key}"):
        MockEngine(pool(handoff=bad))
