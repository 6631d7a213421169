"""Measures how many blocks a second the prefix index takes, and how many bytes each takes there."""

import asyncio
import sys
import time
from collections import deque
from pathlib import Path
from random import Random
from typing import Any

import redis
import uvloop

from app.kv.blocks import HASH_BYTES
from app.kv.changes import Changes
from app.kv.prefix_index import KvIndex
from app.store import Wire, async_client
from ops.bench.parts import Say
from ops.bench.processes import side_by_side
from ops.bench.scale.fleet import KEYS, POOL, blocks, nobody_told
from ops.bench.size import Size
from ops.bench.systems import valkey

WRITERS = 2  # processes
WORKERS = 16  # in all
_BATCH = 64  # blocks that one step of an engine stores; as many are evicted


def index(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Stored blocks a second, with an eviction for each; and bytes of each. Raises: Unavailable."""
    seconds, total = size.of(20.0, 5.0, 0.5), blocks(size)
    with valkey(directory) as port:
        say(f"index: {total:,} blocks of {WORKERS} workers, then as many as it takes for {seconds:g} s")
        store = redis.Redis(port=port)
        before = int(store.info("memory")["used_memory"])  # type: ignore[index]
        arguments = [(port, number, seconds, total) for number in range(WRITERS)]
        figures = side_by_side("ops.bench.scale.index", arguments, directory, seconds + 120)
        after = int(store.info("memory")["used_memory"])  # type: ignore[index]
    block_count, took = sum(f[0] for f in figures), max(f[1] for f in figures)
    return {"events_per_s": block_count / took, "bytes_per_block": (after - before) / total}


async def _write(port: int, number: int, seconds: float, total: int) -> None:
    """Fills this process's share of the caches, then stores and evicts; prints stored blocks and seconds."""
    client = async_client(f"redis://127.0.0.1:{port}/0")
    wire, random = Wire(client), Random(number)
    feeds = [_Feed(wire, random, total // WORKERS) for _ in range(number, WORKERS, WRITERS)]
    for feed in feeds:
        await feed.index.write(Changes(False, list(feed.held), []))
    await client.incr("filled")
    while int(await client.get("filled")) < WRITERS:  # noqa: ASYNC110 (another process changes it)
        await asyncio.sleep(0.01)
    block_count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        await asyncio.gather(*(feed.step() for feed in feeds))
        block_count += _BATCH * len(feeds)
    sys.stdout.write(f"{block_count} {time.perf_counter() - began}\n")
    wire.close()
    await client.aclose()


class _Feed:
    """A worker's part of the index, whose cache is full."""

    def __init__(self, wire: Wire, random: Random, size: int) -> None:
        self.index, self._random = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told), random
        self.held = deque(self._blocks(size))

    async def step(self) -> None:
        new = self._blocks(_BATCH)
        self.held.extend(new)
        await self.index.write(Changes(False, new, [self.held.popleft() for _ in new]))

    def _blocks(self, count: int) -> list[bytes]:
        raw = self._random.randbytes(count * HASH_BYTES)
        return [raw[i : i + HASH_BYTES] for i in range(0, len(raw), HASH_BYTES)]


if __name__ == "__main__":
    uvloop.run(_write(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
