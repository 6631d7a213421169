"""The worker's lease: its life, its load, and the cancels that are addressed to it. On the engine's loop."""

import asyncio
import os
import socket
from contextlib import suppress
from typing import cast

import msgspec
from redis.exceptions import RedisError

from app.engines.base import EngineInfo
from app.ids import PoolId, RunId
from app.messages import Lease, Role, encode
from app.store import async_client
from app.tasks.runner import Runner, end_process
from app.telemetry import logger

log = logger(__name__)


class LeaseKeeper:
    """Says every second that the worker lives. Who stops saying so for `lease_ttl_s` is dead."""

    def __init__(self, runner: Runner, pool: PoolId, role: Role, info: EngineInfo) -> None:
        self._runner, self._keys, self._redis = runner, runner.keys, runner.redis
        self._ended = asyncio.Event()
        self._lease = Lease(
            worker=runner.worker,
            pool=pool,
            role=role,
            host=socket.gethostname(),
            pid=os.getpid(),
            block_size=info.block_size,
            total_blocks=info.total_blocks,
            max_running=info.max_running,
            max_model_len=info.max_model_len,
        )

    async def register(self) -> None:
        """Raises: RedisError when Redis does not answer, which ends the worker's start."""
        await self._write()
        self._keeping = asyncio.create_task(self._keep())
        self._keeping.add_done_callback(end_process)
        self._cancelling = asyncio.create_task(self._obey_cancels())

    async def drain(self) -> None:
        """From now on routing passes this worker by."""
        self._lease = msgspec.structs.replace(self._lease, draining=True)
        await self._try_write()

    async def end(self) -> None:
        """Deregister. After this nothing can be placed here: `place.lua` looks for the lease."""
        await self._runner.emitter.drained(5)  # or an API replica would miss the end of what just finished
        self._ended.set()
        await self._keeping
        self._cancelling.cancel()
        keys, worker = self._keys, self._runner.worker
        pipe = self._redis.pipeline(transaction=True)
        pipe.unlink(keys.worker(worker), keys.cancel(worker), keys.reservations(worker), keys.load(worker))
        pipe.srem(keys.pool(self._lease.pool), worker)
        await pipe.execute()

    async def _keep(self) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), self._runner.settings.heartbeat_s)
            await self._try_write()

    async def _obey_cancels(self) -> None:
        """Aborts what `cancel:<worker>` names, as soon as it is there. A list loses nothing, unlike a channel."""
        redis = async_client(self._runner.settings.redis_url, socket_timeout=None)
        key = self._keys.cancel(self._runner.worker)
        while True:
            try:
                taken = cast(tuple[bytes, bytes] | None, await redis.blpop([key], timeout=5))
            except (RedisError, OSError) as exc:
                log.warning("cancels_not_read", error=repr(exc))
                await asyncio.sleep(1)
                continue
            if taken is not None:
                self._runner.cancel(RunId(taken[1].decode()))

    async def _try_write(self) -> None:
        try:
            await self._write()
        except (RedisError, OSError) as exc:
            log.warning("lease_not_renewed", error=repr(exc))

    async def _write(self) -> None:
        stats = self._runner.engine.stats()
        lease = msgspec.structs.replace(
            self._lease, running=stats.running, waiting=stats.waiting, used_blocks=stats.used_blocks
        )
        ttl_ms = round(self._runner.settings.lease_ttl_s * 1000)
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(self._keys.worker(lease.worker), encode(lease), px=ttl_ms)
        pipe.sadd(self._keys.pool(lease.pool), lease.worker)
        await pipe.execute()
