"""Connectors that a pool's own args bring: what they say of blocks, over real ZMQ and Redis, and to a placement.

The events are vLLM's own types, as these connectors fill them.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from app.dispatch.fleet.fleet_reader import FleetReader
from app.engines.kv_publisher import KvEventArgs, KvPublisher
from app.keys import Keys
from app.kv.blocks import chain, prompt_hashes, root
from app.kv.ledger import Ledger
from app.kv.prefix_index import KvIndex, packed
from app.pools.schema import Pool
from app.routing.candidates import Tiered
from app.store import Wire
from tests.background import beside
from tests.integration.conftest import POOL, nobody_told, register
from workers.engine.kv_event_feed import KvEventFeed

pytestmark = [
    pytest.mark.both_servers,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # of importing vLLM
]

KEYS, SIZE = Keys("test"), 4
CACHED, TIERED = KEYS.cached(POOL), KEYS.tiered(POOL)
TOKENS = [*range(4 * SIZE)]
BLOCKS = chain(root(), TOKENS, SIZE)
HASHES = [bytes([number]) * 32 for number in range(4)]  # the engine's


def stored(first: int, last: int, medium: str, **more: Any) -> Any:
    from vllm.distributed.kv_events import BlockStored

    parent = HASHES[first - 1] if first else None
    fields = {"token_ids": TOKENS[first * SIZE : last * SIZE], "block_size": SIZE, "lora_id": None, "lora_name": None}
    return BlockStored(HASHES[first:last], parent, medium=medium, **(fields | more))


def removed(first: int, last: int, medium: str, **more: Any) -> Any:
    from vllm.distributed.kv_events import BlockRemoved

    return BlockRemoved(HASHES[first:last], medium, **more)


class Fed:
    """A worker's feed of an engine, and what stands in Redis of it."""

    def __init__(self, redis: "Redis", wire: Wire, publisher: KvPublisher, most: float) -> None:
        self._redis, self._publisher = redis, publisher
        self.cache, self.host = (KvIndex(wire, KEYS, index, nobody_told) for index in (CACHED, TIERED))
        ledger = Ledger(SIZE, most_in_host=most)
        self.feed = KvEventFeed(publisher.source, ledger, self.cache, 0.1, host=self.host)

    def hear(self, *events: Any) -> None:
        self._publisher.publish([*events])

    async def becomes(self, cached: list[bytes], in_host: list[bytes]) -> None:
        """Waits until the prompt's blocks in the cache and in the host's memory are these, in order."""
        contents = None
        async with asyncio.timeout(10):
            while contents != (cached, in_host):
                await asyncio.sleep(0.01)
                contents = await self._blocks(self.cache, CACHED), await self._blocks(self.host, TIERED)

    async def _blocks(self, index: KvIndex, keys: tuple[str, str]) -> list[bytes] | None:
        """None: it is being written, so that the count beside the blocks is another one."""
        own, entries = packed(index.number), await self._redis.hgetall(keys[0])
        blocks = [block for block in BLOCKS if own == entries.get(block)]
        return blocks if int(await self._redis.hget(keys[1], own) or 0) == len(blocks) else None


@asynccontextmanager
async def fed(redis: "Redis", wire: Wire, most: float = math.inf) -> AsyncIterator[Fed]:
    publisher = KvPublisher(KvEventArgs())
    worker_feed = Fed(redis, wire, publisher, most)
    try:
        async with beside(worker_feed.feed.run()):
            yield worker_feed
    finally:
        await publisher.close()


async def test_what_a_connector_has_of_a_worker_is_found_without_tiers_in_the_pool(redis: "Redis", wire: Wire) -> None:
    """The events are as Mooncake's store sends them: with small letters, and with tokens of which it says no salt."""
    async with fed(redis, wire) as worker:
        worker.hear(stored(0, 4, "GPU"), stored(0, 4, "cpu"), removed(1, 4, "GPU"))
        await worker.becomes(BLOCKS[:1], BLOCKS)
        numbers = {"caches": [worker.cache.number], "hosts": [worker.host.number]}
        await register(redis, KEYS, "w", tier_block_bytes=1, block_size=SIZE, **numbers)
        pools = {POOL: Pool(model="m", engine="mock", block_size=SIZE)}
        prompt = prompt_hashes([*TOKENS, 0], SIZE)
        [matches] = (await FleetReader(wire, KEYS, pools, 10).read({POOL: [prompt]}))[POOL].matches
        assert matches.depths == [(1, frozenset([0]))]
        assert matches.tiered == {0: Tiered(host=3)}


async def test_a_block_that_is_announced_twice_counts_once(redis: "Redis", wire: Wire) -> None:
    """The announcements come from the engine and its connector, from one connector in two media, or again.

    The latter happens with chunks that overlap.
    """
    async with fed(redis, wire) as worker:
        worker.hear(stored(0, 4, "GPU"), stored(0, 2, "CPU"), stored(0, 4, "CPU"), stored(0, 4, "STORAGE"))
        await worker.becomes(BLOCKS, BLOCKS)
        worker.hear(removed(0, 4, "GPU"), removed(0, 4, "CPU"), removed(3, 4, "STORAGE"))
        await worker.becomes([], BLOCKS[:3])
        worker.hear(removed(0, 3, "STORAGE"))
        await worker.becomes([], [])
        worker.hear(stored(0, 4, "CPU"), stored(0, 4, "GPU"), removed(0, 4, "GPU"))
        await worker.becomes([], BLOCKS)


async def test_a_connector_without_tokens_or_with_other_hashes_does_no_harm(redis: "Redis", wire: Wire) -> None:
    """OffloadingConnector by default; a chunk of LMCache's whose beginning nobody has told."""
    from vllm.distributed.kv_events import BlockStored

    chunk = BlockStored([12345], 54321, TOKENS[: 2 * SIZE], 2 * SIZE, None, "cpu", None)
    async with fed(redis, wire) as worker:
        worker.hear(chunk, stored(0, 2, "GPU"), *(BlockStored([one], None, [], 0, None, "CPU", None) for one in HASHES))
        await worker.becomes(BLOCKS[:2], BLOCKS[:2])
        assert not worker.feed._ledger.unknown


async def test_the_blocks_of_lmcaches_chunks_are_found_by_their_tokens(redis: "Redis", wire: Wire) -> None:
    """Its hashes are its own, and a chunk has several blocks. The events are as its connector fills them."""

    from vllm.distributed.kv_events import BlockRemoved, BlockStored

    def chunk(number: int) -> Any:
        tokens = TOKENS[2 * number * SIZE : 2 * (number + 1) * SIZE]
        parent = b"chunk 0" if number else None
        return BlockStored([b"chunk %d" % number], parent, tokens, 2 * SIZE, None, "CPU", None)

    async with fed(redis, wire) as worker:
        worker.hear(stored(0, 4, "GPU"), chunk(0), chunk(1))
        await worker.becomes(BLOCKS, BLOCKS)
        worker.hear(removed(0, 4, "GPU"))
        await worker.becomes([], BLOCKS)
        worker.hear(BlockRemoved([b"chunk 1"], "CPU"))
        await worker.becomes([], BLOCKS[:2])


async def test_what_lies_on_another_host_is_not_the_workers(redis: "Redis", wire: Wire) -> None:
    async with fed(redis, wire) as worker:
        worker.hear(
            stored(0, 4, "GPU"),
            stored(0, 4, "STORAGE", locality="REMOTE"),
            stored(0, 3, "CPU", locality="REMOTE"),
            stored(0, 4, "EXTERNAL"),
            stored(3, 4, "STORAGE", locality="LOCAL"),
        )
        await worker.becomes(BLOCKS, BLOCKS[3:])
        worker.hear(removed(0, 4, "CPU", locality="REMOTE"), removed(0, 1, "GPU"))
        await worker.becomes(BLOCKS[1:], BLOCKS[3:])


async def test_of_a_connector_that_never_says_what_it_drops_the_oldest_are_forgotten(
    redis: "Redis", wire: Wire
) -> None:
    async with fed(redis, wire, most=2) as worker:
        worker.hear(stored(0, 4, "GPU"), *(stored(i, i + 1, "cpu") for i in (0, 1, 0, 2)))
        await worker.becomes(BLOCKS, [BLOCKS[0], BLOCKS[2]])
        worker.hear(stored(0, 4, "cpu"))
        await worker.becomes(BLOCKS, BLOCKS[2:])
