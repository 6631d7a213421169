"""The salts whose blocks are to be removed from stores, and the number of blocks that a pool's workers have removed."""

from collections.abc import Mapping
from typing import cast

from redis.asyncio import Redis

from app.ids import PoolId
from app.keys import Keys


class ErasedSalts:
    """The erased salts, for one pool. All methods raise RedisError."""

    def __init__(self, redis: "Redis", keys: Keys, pool: PoolId) -> None:
        self._redis, self._name, self._pool = redis, keys.erased_salts(), pool

    async def labels(self) -> frozenset[str]:
        fields = cast(list[bytes], await self._redis.hkeys(self._name))
        return frozenset(field.decode() for field in fields if b"|" not in field)

    async def removed(self, blocks: Mapping[str, int]) -> None:
        """Adds these numbers of removed blocks, by label: no block of these is in the store now."""
        pipe = self._redis.pipeline(transaction=False)
        for label, count in blocks.items():
            pipe.hincrby(self._name, f"{label}|{self._pool}", count)
        await pipe.execute()
