"""A deployment as an API replica or a batch worker uses it: its Redis, and what is known there of its workers."""

import random
from collections.abc import Mapping
from contextlib import suppress

from redis.exceptions import RedisError

from app.dispatch.fleet.fleet_reader import FleetReader
from app.errors import StoreDown
from app.ids import ApiId, CellId, PoolId
from app.pools.schema import Pool
from app.settings import Settings
from app.store import Wire, async_client


class Cell:
    def __init__(self, name: CellId, settings: Settings, pools: Mapping[PoolId, Pool], timeout_s: float = 5.0) -> None:
        """`timeout_s`: of the Redis for all but tokens, as of `Wire`."""
        self.name, self.settings, self.keys = name, settings, settings.keys
        steady_s, urls = settings.intervals.steady_s, settings.token_redis_urls
        self.redis = async_client(settings.redis_url, self.keys.home)
        self.wire = Wire(self.redis, timeout_s, steady_s)
        self.token_redis = random.randint(1, len(urls)) if urls else 0  # noqa: S311 (spreads load, guards nothing)
        self._token_client = async_client(urls[self.token_redis - 1]) if urls else self.redis
        self.token_wire = Wire(self._token_client, steady_after_s=steady_s) if urls else self.wire
        self._broker_client = async_client(settings.broker_url) if settings.broker_url else None
        # The Redis of Celery's messages, if it is another one.
        self.broker = Wire(self._broker_client, timeout_s) if self._broker_client else None
        self._index_client = async_client(settings.index_url) if settings.index_url else None
        self._index = Wire(self._index_client) if self._index_client else None
        self.fleet = FleetReader(
            self.wire,
            self.keys,
            pools,
            settings.max_queued,
            settings.intervals.look_s,
            token_redis=self.token_redis,
            broker_apart=self.broker is not None,
            index=self._index,
        )

    async def close(self, api: ApiId) -> None:
        """Removes what this process has there."""
        with suppress(RedisError, OSError, StoreDown):
            await self.redis.unlink(self.keys.api(api))
            await self.token_wire.execute([("UNLINK", self.keys.out(api), self.keys.out_marks(api))])
        for each in filter(None, (self.wire, self.token_wire, self.broker, self._index)):
            each.close()
        for client in filter(None, (self.redis, self._token_client, self._broker_client, self._index_client)):
            await client.aclose()
