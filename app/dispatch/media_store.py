"""Writes the samples of pictures, sound and embeddings to Redis, from where workers take them."""

import asyncio
import math
import time
from collections.abc import Mapping

from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.errors import StoreDown
from app.keys import Keys

_PIECE = 2**20  # bytes; a picture in one piece would hold up the event loop, and all else that Redis does
_LONGER_S = 30  # than the deadline, as the request's record
_RETRY_S = 0.2


class MediaStore:
    def __init__(self, redis: "Redis", keys: Keys, patience_s: float = 0.0) -> None:
        """`redis`: with connections of its own, where nothing waits behind a picture.

        `patience_s`: how long a request waits for Redis, before it is refused.
        """
        self._redis, self._keys, self._patience_s = redis, keys, patience_s

    async def put(self, samples: Mapping[str, bytes], lasts_s: float) -> None:
        """`samples` by their hashes, for as long as a request may run. What is there already isn't sent again.

        Raises: StoreDown.
        """
        end = time.monotonic() + min(self._patience_s, lasts_s)
        while True:
            try:
                return await self._put(samples, math.ceil(lasts_s) + _LONGER_S)
            except (RedisError, OSError) as exc:
                if time.monotonic() > end:
                    raise StoreDown from exc
            await asyncio.sleep(_RETRY_S)

    async def _put(self, samples: Mapping[str, bytes], expires_s: int) -> None:
        """Raises: RedisError, OSError."""
        there = self._redis.pipeline(transaction=False)
        for sha256 in samples:
            there.strlen(self._keys.media(sha256))
            there.expire(self._keys.media(sha256), expires_s, gt=True)
        sizes = (await there.execute())[::2]
        for (sha256, data), size in zip(samples.items(), sizes, strict=True):
            if size != len(data):  # another replica may be writing the same bytes
                await self._write(self._keys.media(sha256), data, expires_s)

    async def _write(self, key: str, data: bytes, expires_s: int) -> None:
        view = memoryview(data)
        for start in range(0, len(data), _PIECE):
            piece = self._redis.pipeline(transaction=False)
            piece.setrange(key, start, bytes(view[start : start + _PIECE]))
            if start == 0:
                piece.expire(key, expires_s, nx=True)
            await piece.execute()
        await self._redis.expire(key, expires_s, gt=True)
