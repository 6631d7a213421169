"""Bytes move between engines through NIXL; every way of losing them ends in HandoffFailed, with nothing held."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from app.engines.base import Prefilled
from app.engines.mock.engine import MockEngine
from app.errors import HandoffFailed
from app.kv.spans import merged, pieces
from app.messages.handoff import KvHandle, Rendezvous
from tests.disaggregated import (
    again,
    at_once,
    behind,
    engine,
    idle,
    request,
    room_of,
    run,
    shown,
    stats_become,
)  # fmt: skip

pytestmark = pytest.mark.integration

SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7, "stop": (" the",)},
    {"logprobs": 2, "min_tokens": 10, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
    {"n": 2, "temperature": 1.0},
]


@pytest.fixture
async def p() -> AsyncIterator[MockEngine]:
    async with engine(nixl=True) as instance:
        yield instance


@pytest.fixture
async def d() -> AsyncIterator[MockEngine]:
    async with engine(nixl=True, timeout_s=1.0) as instance:
        yield instance


async def holds(made: MockEngine, asked: Any) -> bool:
    """Are the blocks of this prompt's cached prefix marked with its hashes?"""
    blocks, memory = made._cores[0].blocks, made._cores[0].handoffs.link.memory
    assert memory is not None
    return all(memory.holds(block, digest) for digest, block in blocks._cached.items()) and bool(blocks._cached)


def damage(made: MockEngine, block: int) -> None:
    memory = made._cores[0].handoffs.link.memory
    assert memory is not None
    memory.mark(block, 0)


async def test_an_answer_is_the_same_and_the_bytes_have_come(p: MockEngine, d: MockEngine) -> None:
    """The handoff is in sequence: the holder's blocks become free when they have been read."""
    async with engine() as alone:
        for i, sampling in enumerate(SAMPLINGS):
            query = request(100 + 4 * i, first=300 + i, **sampling)
            prefill_result = await p.prefill(query)
            assert p.stats().lent_blocks == 4
            outputs = await run(d, behind(query, prefill_result))
            head = [] if prefill_result.output is None else [prefill_result.output]
            expected_outputs = await run(alone, query)
            for index in range(query.sampling.n):
                assert shown([*head, *outputs], index) == shown(expected_outputs, index)
            assert outputs[0].pulled is not None
            assert outputs[0].pulled.size == 4 * 4096
            await stats_become(p, idle)
            assert await holds(d, query)
    assert d.stats().pulled_tokens == 100 + 104 + 108 + 112


async def test_only_what_is_not_cached_is_read(p: MockEngine, d: MockEngine) -> None:
    """The second prompt with the same beginning moves its tail; one that is there wholly frees the holder, too."""
    for tokens, block_count in ((100, 4), (150, 2), (150, 1)):
        query = request(tokens)
        outputs = await run(d, behind(query, await p.prefill(query)))
        assert outputs[0].pulled is not None
        assert outputs[0].pulled.size == block_count * 4096
        await stats_become(p, idle)
    expected_outputs = await run(d, request(128, max_tokens=40))
    query = request(128)
    prefill_result = await p.prefill(query)
    going_on = again(query, handoff=prefill_result.handoff, begun=[])
    [first_choice] = behind(query, prefill_result).begun
    assert first_choice.tokens == expected_outputs[0].tokens
    outputs = await run(d, replace(going_on, begun=[first_choice]))
    assert outputs[0].pulled is not None
    assert outputs[0].pulled.size == 0
    await stats_become(p, idle)


async def test_a_discarded_prompt_is_free(p: MockEngine, d: MockEngine) -> None:
    """The blocks are free at once, not when the lease ends."""
    handoff = (await p.prefill(request())).handoff
    assert handoff is not None
    assert p.stats().lent_blocks == 4
    await d.discard(handoff)
    await stats_become(p, idle, within_s=1)
    with pytest.raises(HandoffFailed):  # the blocks still hold its KV, but nobody vouches for it
        damage(p, handoff.params["blocks"][0])
        await run(d, again(request(), handoff=handoff))
    assert idle(d.stats())


@pytest.mark.alone
async def test_a_lease_ends() -> None:
    """A side that decodes and has died costs the holder no memory for ever."""
    async with engine(nixl=True, lease_s=0.2) as p:
        await p.prefill(request())
        began = time.perf_counter()
        await stats_become(p, idle)
        assert time.perf_counter() - began == pytest.approx(0.2, abs=0.1)


async def test_a_refusal_tells_the_holder(p: MockEngine) -> None:
    """Its blocks are free though nobody took them."""
    async with engine(nixl=True, layout="other") as d:
        query = request()
        with pytest.raises(HandoffFailed, match="layout"):
            await run(d, behind(query, await p.prefill(query)))
        assert idle(d.stats())
        await stats_become(p, idle, within_s=1)


async def test_aborting_before_the_pull_tells_the_holder(p: MockEngine) -> None:
    """A request that waits for a seat has pulled nothing yet."""
    async with engine(nixl=True, max_running=1, speedup=1.0) as d:
        decoding = d.generate(request(max_tokens=500))
        await anext(decoding)
        query = request(first=700)
        waiting = asyncio.create_task(run(d, behind(query, await p.prefill(query))))
        await stats_become(d, lambda stats: stats.waiting == 1)
        assert p.stats().lent_blocks == 4
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await stats_become(p, idle, within_s=1)
        assert d.stats().pulled_tokens == 0
        await decoding.aclose()


@pytest.mark.parametrize("which", [0, 3])
async def test_a_block_that_holds_something_else_is_a_loss(p: MockEngine, d: MockEngine, which: int) -> None:
    """A full one, and the last one, which isn't."""
    query = request()
    prefill_result = await p.prefill(query)
    assert prefill_result.handoff is not None
    damage(p, prefill_result.handoff.params["blocks"][which])
    with pytest.raises(HandoffFailed, match="not of this prompt"):
        await run(d, behind(query, prefill_result))
    assert idle(d.stats())
    assert len(await run(d, request())) == 12


async def test_an_engine_that_restarted_is_not_the_one_that_lent(p: MockEngine, d: MockEngine) -> None:
    """Its metadata names another life."""
    query = request()
    async with engine(nixl=True) as new_engine:
        handoff = (await p.prefill(query)).handoff
        other = (await new_engine.prefill(again(query))).handoff
        assert handoff is not None
        assert other is not None
        mixed_handoff = replace(handoff, params=handoff.params | {"agent": other.params["agent"]})
        with pytest.raises(HandoffFailed, match="Expected"):
            await run(d, again(query, handoff=mixed_handoff))
        assert len(await run(d, again(query, handoff=other))) == 12
        assert idle(d.stats())


CHILD = """
import asyncio, sys, msgspec
from tests.disaggregated import engine, request, room_of
async def main():
    async with engine(nixl=True, shape="at_once") as p:
        for i in range(2):
            print(msgspec.json.encode((await p.prefill(request(first=300 + i))).handoff).decode(), flush=True)
        print(msgspec.json.encode(room_of(p)).decode(), flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_a_holder_that_was_killed_is_a_loss(d: MockEngine) -> None:
    """Known or not, before the pull or while it is awaited: no hang, and blocks are free."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, stdout=asyncio.subprocess.PIPE)
    try:
        assert child.stdout is not None
        lines = [await child.stdout.readline() for _ in range(3)]
        first, second = (msgspec.json.decode(line, type=KvHandle) for line in lines[:2])
        room = msgspec.json.decode(lines[2], type=Rendezvous)
        assert len(await run(d, again(request(first=300), handoff=first))) == 12
        async with engine(nixl=True, timeout_s=1.0) as stranger:
            visiting = asyncio.create_task(run(d, again(request(first=500), handoff=room)))
            await stats_become(d, lambda stats: stats.used_blocks == 4)
            child.kill()
            await child.wait()
            for reader in (d, stranger):
                began = time.perf_counter()
                with pytest.raises(HandoffFailed):
                    await run(reader, again(request(first=301), handoff=second))
                await reader.discard(second)
                assert time.perf_counter() - began < 2.5
            with pytest.raises(HandoffFailed):
                await visiting
            assert idle(stranger.stats())
            assert idle(d.stats())
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@pytest.mark.parametrize("delay", [0.0, 0.0005, 0.002, 0.01])
async def test_cancelling_during_a_pull_frees_both_sides(delay: float) -> None:
    """Local blocks are held until nobody writes into them any more."""
    big = {"nixl": True, "block_bytes": 4 * 2**20}
    async with engine(**big) as p, engine(**big) as d:
        query = request(1000)
        pulling = asyncio.create_task(run(d, behind(query, await p.prefill(query))))
        await stats_become(d, lambda stats: stats.used_blocks > 0)
        await asyncio.sleep(delay)
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)
        await stats_become(d, idle)
        await stats_become(p, idle)
        outputs = await run(d, behind(query, await p.prefill(again(query))))
        assert len(outputs) == 11


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
async def test_at_once_the_bytes_are_written(sampling: dict[str, Any], d: MockEngine) -> None:
    """The engine that decodes offers its blocks, and makes all tokens."""
    async with engine(nixl=True, shape="at_once") as p, engine() as alone:
        query = request(**sampling)
        outputs, expected_outputs = await at_once(p, d, query), await run(alone, query)
        for index in range(query.sampling.n):
            assert shown(outputs, index) == shown(expected_outputs, index)
        assert outputs[0].pulled is not None
        assert outputs[0].pulled.size == 4 * 4096
        assert await holds(d, query)
        longer = request(150, **sampling)
        assert (await at_once(p, d, longer))[0].cached_tokens == 96
        assert idle(p.stats())
        assert idle(d.stats())


async def test_leaving_a_room_frees_both_sides(d: MockEngine) -> None:
    """Whenever the client goes."""
    async with engine(nixl=True, shape="at_once", timeout_s=1.0) as p:
        for delay in (0.0, 0.001, 0.005, 0.02):
            room = room_of(p)
            query = again(request(), handoff=room)
            both = [asyncio.create_task(p.prefill(query)), asyncio.create_task(run(d, query))]
            await asyncio.sleep(delay)
            both[1].cancel()
            results = await asyncio.gather(*both, return_exceptions=True)
            assert isinstance(results[0], HandoffFailed | Prefilled)
            await stats_become(d, idle)
            await stats_become(p, idle)


def test_neighbours_on_both_sides_are_moved_as_one() -> None:
    """The order in which they were given doesn't matter."""
    assert merged([(20, 120), (10, 110), (40, 140), (30, 150)], 10) == [(10, 110, 20), (30, 150, 10), (40, 140, 10)]


def test_pieces_are_the_same_bytes_in_the_same_order() -> None:
    """Whether spans are shorter than a piece or longer."""
    spans = [(0, 100, 3), (10, 110, 9), (30, 130, 4)]
    parts = list(pieces(spans, 5))
    assert [sum(size for _, _, size in part) for part in parts] == [5, 5, 5, 1]
    of = lambda spans: [(here + i, there + i) for here, there, size in spans for i in range(size)]  # noqa: E731 (short)
    assert of([span for part in parts for span in part]) == of(spans)
    assert list(pieces(spans, 16)) == [spans]
