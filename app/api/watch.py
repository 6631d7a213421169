"""Once a second: workers that died with our requests on them, and requests whose time is over."""

import asyncio
import time
from typing import Literal

from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.api.dispatch import Dispatcher, Flight
from app.api.inbox import Inbox
from app.errors import DeadlineOver, WorkerLost
from app.ids import PoolId, WorkerId, worker_queue
from app.keys import PRIORITY_STEPS, Keys
from app.telemetry import WORKERS_LOST, logger

log = logger(__name__)

_EVERY_S = 1.0
# The engine ends a request at its deadline; this side does when nothing came of that.
_DEADLINE_GRACE_S = 2.0


def verdict(flight: Flight) -> Literal["retry", "fail"]:
    """What becomes of a request whose worker is gone: nobody has seen a token of it yet, or somebody has."""
    return "fail" if flight.began else "retry"


class Watch:
    def __init__(self, redis: "Redis", keys: Keys, dispatcher: Dispatcher) -> None:
        self._redis, self._keys, self._dispatcher = redis, keys, dispatcher
        self.inbox: Inbox

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            self._end_overdue(time.time())
            try:
                await self._look_for_dead_workers()
            except (RedisError, OSError) as exc:
                log.warning("workers_not_looked_at", error=repr(exc))

    def worker_lost(self, worker: WorkerId) -> None:
        """Its requests go to other workers, or end with an error when part of the answer is out already."""
        for flight in self._flights_of(worker):
            if verdict(flight) == "retry":
                self._dispatcher.retry(flight)
            else:
                self._dispatcher.fail(flight, WorkerLost())

    def _end_overdue(self, now: float) -> None:
        for flight in list(self._dispatcher.flights.values()):
            if now > flight.job.deadline + _DEADLINE_GRACE_S:
                self._dispatcher.fail(flight, DeadlineOver())

    def _flights_of(self, worker: WorkerId) -> list[Flight]:
        return [f for f in self._dispatcher.flights.values() if f.job.worker == worker]

    async def _look_for_dead_workers(self) -> None:
        awaited = {f.job.worker: f.job.pool for f in self._dispatcher.flights.values() if f.job.worker}
        if not awaited:
            return
        pipe = self._redis.pipeline(transaction=False)
        for worker in awaited:
            pipe.exists(self._keys.worker(worker))
        alive = await pipe.execute()
        for (worker, pool), lives in zip(awaited.items(), alive, strict=True):
            if not lives:
                await self._bury(worker, pool)

    async def _bury(self, worker: WorkerId, pool: PoolId) -> None:
        log.error("worker_lost", worker=worker, pool=pool, requests=len(self._flights_of(worker)))
        WORKERS_LOST.inc()
        keys, queue = self._keys, worker_queue(pool, worker)
        pipe = self._redis.pipeline(transaction=True)
        pipe.srem(keys.pool(pool), worker)
        pipe.unlink(keys.reservations(worker), keys.load(worker), keys.cancel(worker))
        pipe.unlink(*(keys.queue(queue, step) for step in PRIORITY_STEPS))
        await pipe.execute()
        self.worker_lost(worker)
        self.inbox.forget(worker)
