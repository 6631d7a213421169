"""Real vLLM's tiers in a real Redis: of a connector that the pool's args bring, and of two ranks with a store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from redis.asyncio import Redis

from app.ids import WorkerId
from app.keys import Keys
from app.kv.blocks import prompt_hashes
from app.kv.prefix_index import KvIndex, packed
from app.runner.runner import Runner
from app.store import Wire
from tests.background import beside
from tests.integration.conftest import POOL, nobody_told
from tests.integration.test_vllm_tiers import BLOCK, BLOCK_BYTES, BLOCKS, TOKENS, Answer, Asker, prompt_of, started
from workers.engine.kv_indices import KvIndices, kv_indices

pytestmark = [
    pytest.mark.tiers,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

KEYS = Keys("test")
OWN = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "CpuMemorySpec",
        "spec_module_path": "app.engines.vllm.tiers.cpu_memory",
        "cpu_bytes_to_use": 50 * BLOCK_BYTES,
    },
}


class Index:
    """An engine's blocks, as Redis has them."""

    def __init__(self, redis: "Redis", kv: KvIndices) -> None:
        self._redis, self.kv = redis, kv

    async def becomes(self, seed: int, *, rank: int = 0, cached: bool, in_host: bool, stored: bool = False) -> None:
        """Whether the whole prompt is in that rank's cache and host memory, and in the store; else nothing of it is."""
        expected_counts = [BLOCKS * there for there in (cached, in_host, stored)]
        counts: list[int] = []
        async with asyncio.timeout(30):
            while counts != expected_counts:
                await asyncio.sleep(0.02)
                store = self.kv.store.number if self.kv.store else 0
                numbers = self.kv.caches[rank].number, self.kv.hosts[rank].number, store
                counts = [await self._count(seed, number, i) for i, number in enumerate(numbers)]

    async def _count(self, seed: int, number: int, tier: int) -> int:
        """Blocks of the prompt under the number."""
        hashes = prompt_hashes([*prompt_of(seed), 0], BLOCK)
        key = (KEYS.tiered(POOL) if tier else KEYS.cached(POOL))[0]
        entries = await self._redis.hmget(key, [hashes[i : i + 8] for i in range(0, len(hashes), 8)])
        return sum(
            packed(number) in {e[i : i + 4] for i in range(0, len(e), 4)} for e in map(bytes, filter(None, entries))
        )


@asynccontextmanager
async def indexed(redis: "Redis", wire: Wire, asker: Asker) -> AsyncIterator[Index]:
    runner = SimpleNamespace(index=wire, redis=redis, keys=KEYS, engine=asker.engine, worker=WorkerId("w"))
    kv = kv_indices(cast(Runner, runner), POOL, asker.pool, asker.info, nobody_told)
    async with AsyncExitStack() as stack:
        for feed in kv.feeds:
            await stack.enter_async_context(beside(feed.run()))
        yield Index(redis, kv)


async def counted(redis: "Redis", index: KvIndex) -> int:
    return int(await redis.hget(KEYS.tiered(POOL)[1], packed(index.number)) or 0)


async def test_what_the_pools_own_connector_keeps_is_in_the_hosts_part_once(redis: "Redis", wire: Wire) -> None:
    async with started({"kv_transfer_config": OWN}) as asker, indexed(redis, wire, asker) as index:
        first_answer = await asker.ask(1)
        await index.becomes(1, cached=True, in_host=True)
        await asker.evict()
        await index.becomes(1, cached=False, in_host=True)
        assert await asker.ask(1) == Answer(first_answer.tokens, TOKENS)
        await index.becomes(1, cached=True, in_host=True)
        assert asker.engine.stats().host_bytes_per_s > 0
        await asker.evict()
        await asker.evict()  # host memory has room for three prompts
        await index.becomes(1, cached=False, in_host=False)
        assert await counted(redis, index.kv.hosts[0]) <= 50


async def test_each_rank_loads_from_the_store_what_the_other_has_stored(
    redis: "Redis", wire: Wire, tmp_path: Path
) -> None:
    tiers = {"host_gb": 0.016, "disk": str(tmp_path / "kv")}
    async with started(data_parallel_size=2, tiers=tiers) as asker, indexed(redis, wire, asker) as index:
        answers = [await asker.ask(seed, rank=seed) for seed in (0, 1)]
        assert [answer.cached for answer in answers] == [0, 0]
        for seed in (0, 1):
            await index.becomes(seed, rank=seed, cached=True, in_host=True, stored=True)
            await index.becomes(seed, rank=1 - seed, cached=False, in_host=False, stored=True)
        for seed in (0, 1):
            assert await asker.ask(seed, rank=1 - seed) == Answer(answers[seed].tokens, TOKENS)
            await index.becomes(seed, rank=1 - seed, cached=True, in_host=True, stored=True)
