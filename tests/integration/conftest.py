"""A clean Redis, its keys, and workers that exist only as leases."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from redis.asyncio import Redis

from app.ending import end_tasks
from app.ids import PoolId, WorkerId
from app.keys import Keys
from app.messages import Lease, Worker, encode
from app.store import Wire, async_client
from tests.leases import changed

POOL = PoolId("decode-pool-a")


@pytest_asyncio.fixture
async def redis(store_url: str) -> AsyncIterator["Redis"]:
    client = async_client(store_url)
    await client.flushall()
    yield client
    await _end_others()
    await client.aclose()


@pytest_asyncio.fixture
async def wire(redis: "Redis") -> AsyncIterator[Wire]:
    w = Wire(redis)
    yield w
    await _end_others()
    w.close()


async def _end_others() -> None:
    """What a test has left running would connect again, and its socket would be found open in another test."""
    await end_tasks(asyncio.all_tasks() - {asyncio.current_task()})


async def register(
    redis: "Redis", keys: Keys, worker: str, *, ttl_s: float = 60, max_running: int = 8, **lease: Any
) -> WorkerId:
    """A worker as far as routing can see."""
    own = Worker(
        id=WorkerId(worker),
        pool=POOL,
        role="both",
        host="here",
        pid=1,
        block_size=32,
        total_blocks=1000,
        max_running=max_running,
        max_model_len=4096,
        kv_events=True,
    )
    told = changed(Lease(own), **lease)
    own = told.worker
    await redis.set(keys.worker(own.id), encode(told), px=round(ttl_s * 1000))
    await redis.hset(keys.pool(own.pool), own.id, f"{own.ranks},{int(own.kv_events)}")
    return own.id


async def had_worker(redis: "Redis", keys: Keys, lately_s: float = 60) -> None:
    """The last of the pool's workers has gone, and for `lately_s` seconds it is not long ago."""
    await redis.set(keys.seen(POOL), "1", px=round(lately_s * 1000))
