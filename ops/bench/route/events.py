"""KV events into the index: the feeds of eight workers, each in a process with its engine's publisher."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import redis
import uvloop

from app.engines.kv_publisher import BlockRemoved, BlockStored, KvEventArgs, KvPublisher
from app.ids import PoolId
from app.keys import Keys
from app.kv.ledger import Ledger
from app.kv.prefix_index import KvIndex, packed
from app.store import Wire, async_client
from ops.bench.parts import Say
from ops.bench.processes import side_by_side
from ops.bench.route.decision import BLOCK
from ops.bench.size import Size
from ops.bench.systems import valkey
from workers.engine.kv_event_feed import KvEventFeed

WORKERS, OFFERED = 8, 60_000  # workers; blocks/s, a fifth above the target
_BATCH = 64  # blocks that one step of an engine stores
_KEEP = 20_000  # blocks of an engine; beyond it each stored block evicts an old one
_POOL, _KEYS = PoolId("bench"), Keys("bench")


def events(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Blocks per second that reached the index, and the delay of the last ones. Raises: Unavailable."""
    seconds, workers = size.of(20.0, 5.0, 0.5), size.of(WORKERS, WORKERS, 2)
    with valkey(directory) as port:
        say(f"events: {OFFERED:,} blocks a second for {seconds:g} s from {workers} workers")
        start = time.time() + size.of(5, 5, 2)  # when all of them have begun
        arguments = [(port, OFFERED / WORKERS, seconds, start)] * workers
        figures = side_by_side("ops.bench.route.events", arguments, directory, seconds + 60)
        counts: Any = redis.Redis(port=port).hgetall(_KEYS.cached(_POOL)[1])  # and, under longer names, marks of writes
        entries = sum(int(count) for cache, count in counts.items() if len(cache) == len(packed(0)))
    block_count = sum(f[0] for f in figures)
    return {
        "events_per_s": block_count / max(f[1] for f in figures),
        "events_late_s": max(f[2] for f in figures),
        "events_cpu_s": sum(f[3] for f in figures),
        "events_entries": entries,
    }


async def _worker(port: int, rate: float, seconds: float, start: float) -> None:
    """Publishes at `rate` blocks a second from `start` on; prints blocks, seconds until all were in, lateness, CPU."""
    client = async_client(f"redis://127.0.0.1:{port}/0")
    wire = Wire(client)
    index = KvIndex(wire, _KEYS, _KEYS.cached(_POOL), _nobody_told)
    publisher = KvPublisher(KvEventArgs())
    feed = KvEventFeed(publisher.source, Ledger(BLOCK), index)
    following = asyncio.create_task(feed.run())
    tokens = list(range(BLOCK * _BATCH))
    batches = int(seconds * rate / _BATCH)
    await asyncio.sleep(start - time.time())
    cpu = time.process_time()
    for i in range(batches):
        await asyncio.sleep(start + i * _BATCH / rate - time.time())
        hashes = list(range(i * _BATCH, (i + 1) * _BATCH))
        tokens[0] = i  # another prompt each time
        old = [h - _KEEP for h in hashes if h >= _KEEP]
        publisher.publish([BlockStored(hashes, None, tokens, BLOCK), *([BlockRemoved(old)] if old else [])])
    publish_end = time.time()
    entries = min(_KEEP, batches * _BATCH)
    while not await index.is_whole(entries):
        await asyncio.sleep(0.005)
        if time.time() - publish_end > 30:
            raise SystemExit("30 s behind")
    end = time.time()
    sys.stdout.write(f"{batches * _BATCH} {end - start} {end - publish_end} {time.process_time() - cpu}\n")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await publisher.close()
    wire.close()
    await client.aclose()


async def _nobody_told() -> None:
    pass


if __name__ == "__main__":
    uvloop.run(_worker(int(sys.argv[1]), *map(float, sys.argv[2:5])))
