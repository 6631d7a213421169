"""Changes what a pool's workers do: sleep, pause, have other weights. Writes their wanted state, and commands them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.fleet.orders import Command, replies
from app.errors import PoolBusy, XylemError
from app.ids import PoolId, WorkerId
from app.keys import Keys
from app.messages.commands import Wake
from app.messages.lease import Lease
from app.messages.wanted import PoolState, decode_pool_state
from app.messages.wire import encode
from app.routing.pool_state import awake, to_wake, waves
from app.telemetry import logger

log = logger(__name__)
Outcome = dict[WorkerId, str]  # why each worker has refused; "": it has done it

_LOCK_S, _RENEW_S = 10, 3
_WAKE_S = 600.0  # how long a worker may take to wake
_PAUSE_S = 1.0  # after a worker has refused to wake


class PoolControl:
    def __init__(self, redis: "Redis", keys: Keys, fleet: FleetReader) -> None:
        self._redis, self._keys, self._fleet = redis, keys, fleet
        self._waking: dict[PoolId, asyncio.Task[None]] = {}

    async def wanted(self, pool: PoolId) -> PoolState:
        """Raises: RedisError."""
        return _decoded(await self._redis.get(self._keys.pool_state(pool)))

    async def want(self, pool: PoolId, **changes: Any) -> PoolState:
        """Changes fields of what is wanted. Raises: RedisError."""
        key = self._keys.pool_state(pool)

        async def change(pipe: "Pipeline") -> PoolState:
            raw = await cast(Any, pipe.get(key))
            state = replace(_decoded(raw), **changes)
            pipe.multi()  # type: ignore[no-untyped-call]
            pipe.set(key, encode(state))
            return state

        # Requests that wake the pool write it as well, beside whoever is alone.
        return cast(PoolState, await self._redis.transaction(change, key, value_from_callable=True))

    async def workers(self, pool: PoolId) -> list[Lease]:
        """Leases of the living workers. Raises: StoreDown."""
        return await self._fleet.live([pool])

    @asynccontextmanager
    async def alone(self, pool: PoolId) -> AsyncIterator[None]:
        """Nobody else changes the pool's state meanwhile. Raises: PoolBusy, RedisError."""
        key, token = self._keys.pool_lock(pool), secrets.token_hex(8)
        if not await self._redis.set(key, token, nx=True, ex=_LOCK_S):
            raise PoolBusy
        renewing = asyncio.create_task(self._renew(key, token))
        try:
            yield
        finally:
            renewing.cancel()
            if await self._redis.get(key) == token.encode():
                await self._redis.unlink(key)

    async def _renew(self, key: str, token: str) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            try:
                if await self._redis.get(key) != token.encode():
                    log.error("pool_lock_lost", key=key)  # Redis was away for too long
                    return
                await self._redis.expire(key, _LOCK_S)
            except (RedisError, OSError) as exc:
                log.warning("pool_lock_not_renewed", error=repr(exc))

    async def order(self, workers: Iterable[WorkerId], command: Command, timeout_s: float) -> Outcome:
        """Commands all of them at once, and waits for their replies. Raises: RedisError."""
        answers = replies(self._redis, self._keys, workers, command, timeout_s)
        return {one.worker: "" if one.done else one.reason or "it refused" async for one in answers}

    async def roll(
        self, pool: PoolId, version: str, command: Command, timeout_s: float, *, rolling: bool, keep_awake: int | None
    ) -> Outcome:
        """Changes the weights, wave after wave, until one worker fails. Raises: RequestError, RedisError, StoreDown."""
        outcome = Outcome()
        for wave in waves(await self.workers(pool), version, rolling=rolling, keep_awake=keep_awake):
            outcome |= await self.order(wave, command, timeout_s)
            if any(outcome.values()):
                break
        return outcome

    def wake_soon(self, pool: PoolId) -> None:
        """Begins to wake a worker, unless one is being woken already."""
        if pool not in self._waking:
            task = self._waking[pool] = asyncio.create_task(self._wake_one(pool))
            task.add_done_callback(lambda _: self._waking.pop(pool))

    async def _wake_one(self, pool: PoolId) -> None:
        """The sleeping worker that wakes soonest, or the next one if it can't."""
        try:
            for worker in to_wake(leases := await self.workers(pool)):
                outcome = await self.order([worker], Wake, _WAKE_S)
                if not outcome[worker]:
                    log.info("woken_by_request", pool=pool, worker=worker)
                    await self._stays_awake(pool, leases)
                    return
                log.warning("not_woken", pool=pool, worker=worker, reason=outcome[worker])
        except (RedisError, OSError, XylemError, msgspec.DecodeError) as exc:
            log.warning("not_woken", pool=pool, reason=repr(exc))
        await asyncio.sleep(_PAUSE_S)

    async def _stays_awake(self, pool: PoolId, before: Sequence[Lease]) -> None:
        """A worker that is restarted in place of the woken one doesn't sleep either."""
        state, count = await self.wanted(pool), len(awake(before)) + 1
        if state.sleep and state.keep_awake < count:
            await self.want(pool, keep_awake=count)

    async def close(self) -> None:
        for task in list(self._waking.values()):
            task.cancel()


def _decoded(raw: bytes | str | None) -> PoolState:
    return PoolState() if raw is None else decode_pool_state(cast(bytes, raw))
