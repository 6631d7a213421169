"""The workers of a pool, as a worker of it sees them."""

from contextlib import suppress
from typing import cast

import msgspec

from app.ids import PoolId, WorkerId
from app.messages.lease import Lease, decode_lease
from app.runner.runner import Runner


async def pool_leases(runner: Runner, pool: PoolId) -> list[Lease]:
    """Leases of the pool's live workers, this one included. Raises: RedisError."""
    redis, keys = runner.redis, runner.keys
    names = [name.decode() for name in cast(list[bytes], await redis.hkeys(keys.pool(pool)))]
    raws = await redis.mget([keys.worker(WorkerId(name)) for name in names]) if names else []
    leases = []
    for raw in raws:
        if raw is not None:
            with suppress(msgspec.DecodeError):  # of another version
                leases.append(decode_lease(cast(bytes, raw)))
    return leases
