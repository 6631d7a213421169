"""A clean Redis, its keys, and workers that exist only as leases."""

from collections.abc import AsyncIterator

import pytest_asyncio
from redis.asyncio import Redis

from app.ids import PoolId, WorkerId
from app.keys import Keys
from app.messages import Lease, encode
from app.store import Wire, async_client

POOL = PoolId("decode-pool-a")


@pytest_asyncio.fixture
async def redis(store_url: str) -> AsyncIterator["Redis"]:
    client = async_client(store_url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest_asyncio.fixture
async def wire(redis: "Redis") -> AsyncIterator[Wire]:
    w = Wire(redis)
    yield w
    w.close()


async def register(redis: "Redis", keys: Keys, worker: str, *, ttl_s: float = 60, max_running: int = 8) -> WorkerId:
    """A worker as far as routing can see."""
    lease = Lease(
        worker=WorkerId(worker),
        pool=POOL,
        role="both",
        host="here",
        pid=1,
        block_size=32,
        total_blocks=1000,
        max_running=max_running,
        max_model_len=4096,
    )
    await redis.set(keys.worker(lease.worker), encode(lease), px=round(ttl_s * 1000))
    await redis.sadd(keys.pool(POOL), lease.worker)
    return lease.worker
