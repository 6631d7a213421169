"""KV events from an engine's publisher into Redis, a turn for each line on stdin: run with either tree's code.

Counted are blocks a second of CPU time, of this process and of Redis: what others do on the machine matters less then.
"""

import asyncio
import sys
import time
from typing import Any

import uvloop

from app.engines.kv_publisher import BlockRemoved, BlockStored, KvEventArgs, KvPublisher
from app.ids import PoolId
from app.keys import Keys
from app.kv.ledger import Ledger
from app.kv.prefix_index import KvIndex
from app.store import Wire, async_client
from ops.bench.scale.placing import redis_cpu
from workers.engine.kv_event_feed import KvEventFeed

_BLOCK, _BATCH = 32, 64  # tokens; blocks that one step of an engine stores
_KEEP = 300  # steps whose blocks fill its cache


async def _turns(port: int, batches: int) -> None:
    """Stored blocks a second of CPU time, a line each; as many are evicted."""
    client: Any = async_client(f"redis://127.0.0.1:{port}/0")
    wire, keys = Wire(client), Keys("bench")
    index = KvIndex(wire, keys, keys.cached(PoolId("bench")), _nobody_told)
    publisher = KvPublisher(KvEventArgs())
    feed = KvEventFeed(publisher.source, Ledger(_BLOCK), index)
    following = asyncio.create_task(feed.run())
    await asyncio.sleep(1)  # until it has subscribed
    number = await _published(publisher, 0, _KEEP)
    turn, began = 0, 0.0
    while True:
        turn += 1
        # One block more than there was: so the count tells when all is in.
        publisher.publish([BlockStored([-turn], None, [turn] * _BLOCK, _BLOCK)])
        while not await index.is_whole(_KEEP * _BATCH + turn):  # noqa: ASYNC110 (Redis changes it)
            await asyncio.sleep(0.02)
        _say(str(batches * _BATCH / (await _cpu_s(client) - began)) if turn > 1 else "ready")
        if not await asyncio.to_thread(sys.stdin.readline):
            break
        began = await _cpu_s(client)
        number = await _published(publisher, number, batches)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await publisher.close()


async def _cpu_s(client: Any) -> float:
    return time.process_time() + await redis_cpu(client)


async def _published(publisher: KvPublisher, number: int, batches: int) -> int:
    """Steps of an engine from the one of that number on; the number of the next."""
    for step in range(number, number + batches):
        hashes = [*range(step * _BATCH, (step + 1) * _BATCH)]
        tokens = [step, *range(1, _BLOCK * _BATCH)]  # another prompt each time
        old = [one - _KEEP * _BATCH for one in hashes if step >= _KEEP]
        publisher.publish([BlockStored(hashes, None, tokens, _BLOCK), *([BlockRemoved(old)] if old else [])])
        await asyncio.sleep(0)
    return number + batches


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _nobody_told() -> None:
    pass


if __name__ == "__main__":
    uvloop.run(_turns(*map(int, sys.argv[1:3])))
