"""The emitters of one worker: to the Redis that has all else, and to each of `XYLEM_TOKEN_REDIS_URLS`."""

import asyncio
from collections.abc import Sequence

from app.ids import PoolId, RunId, WorkerId
from app.keys import Keys
from app.messages.job import Job
from app.runner.token_emitter import TokenEmitter
from app.settings import Settings
from app.store import Wire


class TokenEmitters:
    def __init__(self, wires: Sequence[Wire], keys: Keys, worker: WorkerId, pool: PoolId, settings: Settings) -> None:
        """`wires`: the first one to the Redis that has reservations and records."""
        main, *others = wires
        self._main = TokenEmitter(main, keys, worker, pool, settings)
        self._others = [TokenEmitter(wire, keys, worker, pool, settings, main=self._main) for wire in others]

    def of(self, job: Job) -> TokenEmitter:
        """The one to the Redis where the job's API replica reads."""
        return self._others[job.token_redis - 1] if job.token_redis else self._main

    @property
    def outputs(self) -> int:
        """Number of events that were emitted or withheld."""
        return sum(e.emitted + e.withheld for e in (self._main, *self._others))

    @property
    def full(self) -> bool:
        """Whether requests wait for one of these Redis."""
        return any(e.full for e in (self._main, *self._others))

    def release(self, run: RunId) -> None:
        """Removes this worker's reservation for a run, begun or not."""
        self._main.release(run)

    async def drained(self, timeout_s: float | None = None) -> None:
        """Returns when everything emitted so far is in Redis, or after `timeout_s`."""
        await asyncio.gather(*(emitter.drained(timeout_s) for emitter in (self._main, *self._others)))

    async def run(self) -> None:
        """Sends until cancelled."""
        async with asyncio.TaskGroup() as sending:
            for emitter in (self._main, *self._others):
                sending.create_task(emitter.run())
