"""A mock engine with tiers: answers stay the same, and a load takes its time, and nobody else's."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.engines.base import EngineStats
from app.engines.mock.engine import MockEngine
from app.errors import RequestError
from app.messages.job import Sampling
from app.pools.schema import Pool, Tiers
from tests.disaggregated import again, behind, idle, request, run, shown, stats_become
from tests.present import present
from tests.unit.test_mock_engine import pool, started

BYTES = 4096  # in a block
OFTEN: list[dict[str, Any]] = [{"temperature": 1.0}, {"n": 3, "temperature": 1.0}, {"logprobs": 2}, {"max_tokens": 80}]


def tiered(disk: Path | None = None, *, host_blocks: int = 100, ranks: int = 1, **args: Any) -> Pool:
    """Twelve blocks of 32 tokens on the device: enough for the prompt, which has ten, but not for another."""
    args = {"total_blocks": 12, "speedup": math.inf, "handoff": {"block_bytes": BYTES}} | args
    tiers = Tiers(host_gb=host_blocks * BYTES / 1e9, disk=None if disk is None else str(disk))
    return pool(max_model_len=384, **args).model_copy(update={"tiers": tiers, "data_parallel_size": ranks})


async def cached_tokens(engine: MockEngine, first: int, **asked: Any) -> int:
    return (await run(engine, replace(request(300, first=first, max_tokens=1), **asked)))[0].cached_tokens


async def evict(engine: MockEngine) -> None:
    await run(engine, request(380, first=700, max_tokens=1))


@pytest.mark.parametrize("sampling", OFTEN, ids=str)
async def test_answers_are_the_same_with_tiers(tmp_path: Path, sampling: dict[str, Any]) -> None:
    """Computed, loaded from host memory, and by a new engine from the store, alone and side by side."""
    sampling = {"max_tokens": 40} | sampling
    requests = [request(200, first=first, **sampling) for first in (100, 700, 1300)]
    async with started(pool(speedup=math.inf)) as plain:
        expected_answers = [shown(await run(plain, one), i) for one in requests for i in range(one.sampling.n)]
    for _ in range(2):
        async with started(tiered(tmp_path, total_blocks=24)) as engine:
            for _ in range(2):
                outputs = await asyncio.gather(*(run(engine, again(one)) for one in requests))
                assert expected_answers == [
                    shown(out, i) for one, out in zip(requests, outputs, strict=True) for i in range(one.sampling.n)
                ]
            assert idle(engine.stats())


async def test_what_is_loaded_counts_as_cached_and_not_as_computed() -> None:
    async with started(tiered()) as engine:
        assert await cached_tokens(engine, 100) == 0
        await evict(engine)
        assert [await cached_tokens(engine, 100) for _ in range(2)] == [288, 288]
        assert engine.stats().prefill_tokens == 300 + 380 + 2 * 12


async def test_logprobs_of_the_prompt_need_all_of_it_computed() -> None:
    async with started(tiered()) as engine:
        await cached_tokens(engine, 100)
        await evict(engine)
        assert await cached_tokens(engine, 100, sampling=Sampling(max_tokens=1, prompt_logprobs=0)) == 0


@pytest.mark.parametrize("n", [1, 4])
async def test_others_go_on_while_blocks_are_loaded_once(n: int) -> None:
    """A short prompt that comes later is done before. Several choices load once, in 0.15 s, by the speed told then."""
    nine = 9 * BYTES / 1e9  # GB
    speeds = {"host_gb_per_s": nine / 0.15, "store_gb_per_s": 1.0}
    async with started(tiered(tiers=speeds, speedup=1.0, step_ms=1.0, prefill_tokens_per_s=1e6)) as engine:
        await cached_tokens(engine, 100)
        await evict(engine)
        clock = asyncio.get_running_loop().time
        began = clock()
        loading_task = asyncio.create_task(run(engine, request(300, first=100, max_tokens=1, n=n)))
        await asyncio.sleep(0.01)
        assert engine.stats().running == 1
        await run(engine, request(20, max_tokens=2))
        assert not loading_task.done()
        outputs = await loading_task
        assert clock() - began > 0.15
        assert {output.cached_tokens for output in outputs} == {288}
        stats = engine.stats()
        assert (stats.host_bytes_per_s, stats.store_bytes_per_s) == (pytest.approx(nine * 1e9 / 0.15), 0)


async def test_a_stored_block_takes_the_time_of_both_tiers(tmp_path: Path) -> None:
    """The time is divided by `speedup`."""
    async with started(tiered(tmp_path)) as first:
        await cached_tokens(first, 100)
    nine = 9 * BYTES / 1e9
    speeds = {"host_gb_per_s": nine / 1.0, "store_gb_per_s": nine / 2.0}
    async with started(tiered(tmp_path, tiers=speeds, speedup=20.0)) as second:
        clock = asyncio.get_running_loop().time
        began = clock()
        assert await cached_tokens(second, 100) == 288
        assert clock() - began > 3.0 / 20
        stats = second.stats()
        assert stats.host_bytes_per_s == pytest.approx(nine * 1e9 * 20)
        assert stats.store_bytes_per_s == pytest.approx(nine * 1e9 * 10)


async def test_a_request_that_is_aborted_while_it_loads_leaves_nothing() -> None:
    """Another request that waited for the same blocks loads them then."""

    def loads(stats: EngineStats) -> bool:
        return (stats.running, stats.waiting) == (1, 1)

    async with started(tiered(tiers={"host_gb_per_s": 9 * BYTES / 1e9 / 0.2}, speedup=1.0, step_ms=1.0)) as engine:
        await cached_tokens(engine, 100)
        await evict(engine)
        original = request(300, first=100, max_tokens=1)
        leaves, stays = (asyncio.create_task(run(engine, one)) for one in (original, again(original)))
        await stats_become(engine, loads)
        await engine.abort(original.id)
        assert (await leaves)[-1].finish == "abort"
        assert (await stays)[0].cached_tokens == 288
        await stats_become(engine, idle)


async def test_a_reset_clears_host_memory_and_not_the_store(tmp_path: Path) -> None:
    for disk, expected_tokens in ((None, 0), (tmp_path, 288)):
        async with started(tiered(disk)) as engine:
            await cached_tokens(engine, 100)
            assert await engine.reset_prefix_cache()
            assert await cached_tokens(engine, 100) == expected_tokens


async def test_other_weights_find_nothing(tmp_path: Path) -> None:
    """Host memory is cleared; a store would have KV of the old ones, and so they are refused."""
    async with started(tiered()) as engine:
        await cached_tokens(engine, 100)
        await engine.pause("wait")
        await engine.update_weights("v2", None)
        await engine.resume()
        assert await cached_tokens(engine, 100) == 0
    async with started(tiered(tmp_path)) as engine:
        await engine.pause("wait")
        with pytest.raises(RequestError, match=r"tiers\.disk"):
            await engine.update_weights("v2", None)


async def test_ranks_share_the_store_and_not_host_memory(tmp_path: Path) -> None:
    for disk, expected_tokens in ((None, 0), (tmp_path, 288)):
        async with started(tiered(disk, ranks=2)) as engine:
            assert await cached_tokens(engine, 100, rank=0) == 0
            assert await cached_tokens(engine, 100, rank=1) == expected_tokens


async def test_prompts_of_other_salts_share_nothing(tmp_path: Path) -> None:
    async with started(tiered(tmp_path)) as engine:
        token_counts = [await cached_tokens(engine, 100, cache_salt=salt) for salt in ("a", "b", None, "a")]
        assert token_counts == [0, 0, 0, 288]


async def test_a_prefill_engine_hands_over_what_it_has_loaded(tmp_path: Path) -> None:
    original = request(300)
    async with started(tiered(tmp_path)) as first, started(pool(speedup=math.inf)) as plain:
        expected_answer = shown(await run(plain, original))
        await first.prefill(original)
    async with started(tiered(tmp_path)) as p, started(tiered()) as d:
        prefill = await p.prefill(again(original))
        assert prefill.cached_tokens == 288
        outputs = await run(d, behind(original, prefill))
        assert shown([present(prefill.output), *outputs]) == expected_answer
        assert d.stats().pulled_tokens == 300


async def test_only_an_engine_that_tells_what_tiers_hold_says_how_large_a_block_is() -> None:
    async with started(tiered(kv_events={})) as tells, started(tiered()) as silent, started(pool()) as without:
        sizes = [engine._info().tier_block_bytes for engine in (tells, silent, without)]
        assert sizes == [BYTES, 0, 0]
