"""From a prompt to a worker's queue in two round trips, and the account of what this process awaits."""

import asyncio
import time
from collections.abc import Sequence
from random import Random

from msgspec.structs import replace
from redis.asyncio import Redis

from app.api.answer import Answer
from app.api.fleet import FleetReader
from app.errors import NoWorker, Returned, WorkerLost, XylemError
from app.ids import ApiId, PoolId, RequestId, WorkerId, worker_queue
from app.keys import Keys
from app.messages import Delta, Event, Failed, Job, encode
from app.routing.fleet import Ask, Limits
from app.routing.policy import place
from app.store import PLACE, translate
from app.tasks.message import DECODE_TASK, priority_step, task_message

_GRACE_S = 30  # a record outlives its deadline by this, so that the worker can answer for it
_MAX_ATTEMPTS = 5
_CANCEL_TTL_S = 60


class Flight:
    """A request on its way: what was sent, where to, and who awaits it."""

    __slots__ = ("answer", "began", "job", "pools")

    def __init__(self, job: Job, pools: Sequence[PoolId], answer: Answer) -> None:
        self.job, self.pools, self.answer = job, pools, answer
        self.began = False  # a token has come back


class Dispatcher:
    """Places requests and routes their events. On the API's event loop."""

    def __init__(self, redis: "Redis", keys: Keys, api: ApiId, fleet: FleetReader, limits: Limits) -> None:
        self._redis, self._keys, self.api, self._fleet, self._limits = redis, keys, api, fleet, limits
        self._place = redis.register_script(PLACE)
        self._rng = Random()  # noqa: S311 (spreads load, guards nothing)
        self._retries: set[asyncio.Task[None]] = set()
        self.flights: dict[RequestId, Flight] = {}

    async def send(self, job: Job, pools: Sequence[PoolId], answer: Answer) -> None:
        """Places an unplaced job on a worker of one of `pools`.

        Raises: NoWorker, Saturated, StoreDown; then nothing was sent and no event will come.
        """
        flight = self.flights[job.request] = Flight(job, pools, answer)
        try:
            await self._send(flight)
        except BaseException:
            self.flights.pop(job.request, None)
            raise

    async def _send(self, flight: Flight) -> None:
        job = flight.job
        ask = Ask(len(job.prompt), job.sampling.max_tokens)
        for _ in range(_MAX_ATTEMPTS):
            to = place(ask, await self._fleet.candidates(flight.pools), self._limits, self._rng)
            flight.job = job = replace(job, pool=to.pool, worker=to.worker)
            queue, step = worker_queue(to.pool, to.worker), priority_step(job.priority)
            ttl_ms = max(1, round((job.deadline - time.time() + _GRACE_S) * 1000))
            keys = self._keys
            with translate():
                placed = await self._place(
                    keys=[
                        keys.worker(to.worker),
                        keys.request(job.request, job.attempt),
                        keys.reservations(to.worker),
                        keys.load(to.worker),
                        keys.queue(queue, step),
                    ],
                    args=[
                        job.request,
                        encode(job),
                        ttl_ms,
                        to.blocks,
                        to.tokens,
                        task_message(DECODE_TASK, queue, job.request, job.attempt, step),
                    ],
                )
            if placed:
                return
            # The worker went between the two round trips: decide again.
        raise NoWorker("The workers of this model keep going away. Try again.")

    def deliver(self, worker: WorkerId, event: Event) -> None:
        """Hands an event to whoever awaits it. Those of an older attempt, and of requests that ended, are dropped."""
        flight = self.flights.get(event.request)
        if flight is None or event.attempt != flight.job.attempt:
            return
        if type(event) is Delta:
            flight.began = True
        elif type(event) is Failed and event.code == Returned.code:
            self.retry_later(flight)
            return
        else:
            del self.flights[event.request]
        flight.answer.push(event)

    def retry_later(self, flight: Flight) -> None:
        """Places the request once more, as a new attempt: events of the old one are ignored from now on."""
        flight.job = replace(flight.job, attempt=flight.job.attempt + 1)
        task = asyncio.create_task(self._retry(flight))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    def fail(self, flight: Flight, error: XylemError) -> None:
        """Ends a request from this side."""
        if self.flights.pop(flight.job.request, None) is not None:
            flight.answer.push(Failed(flight.job.request, flight.job.attempt, error.code, error.message))

    async def _retry(self, flight: Flight) -> None:
        try:
            if flight.job.attempt >= _MAX_ATTEMPTS:
                raise WorkerLost("The workers that were given this request kept going away.")
            await self._send(flight)
        except XylemError as exc:
            self.fail(flight, exc)
            return
        if flight.job.request not in self.flights:  # the client left meanwhile
            self.flights[flight.job.request] = flight
            await self.cancel([flight.job.request])

    async def cancel(self, requests: Sequence[RequestId]) -> None:
        """Gives up on those of `requests` that have not ended: nothing of them comes any more, their engines stop."""
        flights = [f for f in (self.flights.pop(r, None) for r in requests) if f is not None]
        if not flights:
            return
        pipe = self._redis.pipeline(transaction=False)
        for job in (f.job for f in flights):
            pipe.unlink(self._keys.request(job.request, job.attempt))
            pipe.rpush(self._keys.cancel(job.worker), job.request)
            pipe.expire(self._keys.cancel(job.worker), _CANCEL_TTL_S)
        with translate():
            await pipe.execute()
