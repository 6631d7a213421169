"""The account of what this process awaits: sends prompts off, hands their events on, gives up on them."""

import asyncio
from collections.abc import Container, Mapping, Sequence

from msgspec.structs import replace

from app.dispatch.fleet_reader import FleetReader
from app.dispatch.inflight import Flight
from app.dispatch.placer import Placer
from app.dispatch.timeline import Timelines
from app.errors import (
    Cancelled,
    DeadlineOver,
    EngineDead,
    EngineFailed,
    HandoffFailed,
    Returned,
    StoreDown,
    WorkerLost,
    XylemError,
)
from app.ids import ApiId, PoolId, RequestId, RunId, WorkerId
from app.keys import Keys
from app.messages import Cancel, Delta, Done, Event, Failed, First, Handed, Job, Lent, encode
from app.pools import Pool
from app.store import Command, Wire
from app.telemetry import MIGRATIONS, logger

log = logger(__name__)

_ORDERS_TTL_S = 60
_SUSPICIOUS = 2  # so many workers have died with a request
_INNOCENT = 3  # times as many may die when each time something had come of it
# When a prefill ends so, the prompt is computed where the answer is.
_ELSEWHERE = {error.code for error in (EngineFailed, EngineDead, HandoffFailed)}


class Dispatcher:
    """On the API's event loop."""

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        api: ApiId,
        fleet: FleetReader,
        pools: Mapping[PoolId, Pool],
        retry_after_s: int = 1,
        patience_s: float = 0.0,
        max_migrations: int = 3,
    ) -> None:
        """`patience_s`: how long what can't be placed waits for Redis, or for a worker."""
        self._wire, self._keys, self.api = wire, keys, api
        self._max_migrations = max_migrations
        self._retries: set[asyncio.Task[None]] = set()
        self._suspects = asyncio.Lock()
        self.flights: dict[RequestId, Flight] = {}
        self.timelines = Timelines()
        self.placer = Placer(wire, keys, fleet, pools, retry_after_s, patience_s, self.flights, self._stop, self.fail)

    async def send(self, flight: Flight) -> None:
        """Places an unplaced job on a worker of its pools. Whatever comes of it, `cancel` is to be called.

        Raises: NoWorker, Saturated, StoreDown, DeadlineOver.
        """
        self.flights[flight.job.request] = flight
        await self.placer.place(flight)

    async def cancel(self, requests: Sequence[RequestId]) -> None:
        """Gives up on those of `requests` that have not ended: nothing of them comes any more, their engines stop.

        If Redis is away that happens later.
        """
        flights = [f for f in (self.flights.pop(r, None) for r in requests) if f is not None]
        jobs = [f.job for f in flights if f.job.worker]
        try:
            await self._stop(jobs)
        except StoreDown as exc:
            log.warning("cancelled_later", requests=len(jobs), error=exc.message)
            for job in jobs:
                self.placer.leave(job)

    def abandon(self, requests: Sequence[RequestId]) -> None:
        """Those of `requests` that are on no worker yet need not be placed any more."""
        for request in requests:
            flight = self.flights.get(request)
            if flight is not None and not flight.job.worker:
                del self.flights[request]
                flight.wait_no_more()

    def deliver(self, event: Event) -> None:
        """Hands an event to whoever awaits it. Those of an older attempt, and of ended requests, are dropped."""
        flight = self.flights.get(event.request)
        if flight is None or event.attempt != flight.job.attempt:
            return
        if type(event) is Delta:
            if flight.early is not None:
                flight.early.append(event)
                return
            flight.handed = True
            flight.out[event.index].add(event)
            flight.answer.push(event)
        elif type(event) is First:
            self._first(flight, event)
        elif type(event) is Handed:
            self._handed(flight, event)
        elif type(event) is Done:
            self._done(flight, event)
        elif type(event) is Failed:
            self._failed(flight, event)

    def _first(self, flight: Flight, event: First) -> None:
        early, flight.early = flight.early or [], None
        flight.out[0].add(event.delta)
        flight.answer.push(event.delta)
        for other in early:
            self.deliver(other)

    def _handed(self, flight: Flight, event: Handed) -> None:
        flight.job = replace(flight.job, prefilled=event.timing or flight.job.prefilled)
        if event.returned is None:
            flight.handed = True
        else:
            self.lost(flight, event.returned)

    def _failed(self, flight: Flight, event: Failed) -> None:
        prefilling = flight.job.prefill is not None and not flight.handed
        # A worker that thought this replica dead gave up what is awaited all the same.
        if event.code in (Returned.code, Cancelled.code):
            self.lost(flight)
        elif prefilling and event.code in _ELSEWHERE:
            flight.apart = False
            self.lost(flight)
        elif event.code == EngineDead.code:
            self.lost(flight, died=True)
        else:
            self._end(flight, event)

    def _done(self, flight: Flight, event: Done) -> None:
        if flight.early is not None:
            flight.early.append(event)
            return
        prefilled = flight.job.prefilled
        # At once, the worker that answers doesn't know how the other one fared.
        flight.timings = [prefilled, *event.timings] if flight.job.at_once and prefilled else event.timings
        self._end(flight, event)

    def _end(self, flight: Flight, event: Done | Failed) -> None:
        del self.flights[event.request]
        self.placer.room()
        flight.answer.push(event)

    def lost(self, flight: Flight, handoff: Lent | None = None, *, died: bool = False) -> None:
        """Its worker won't finish it: another one goes on behind what is out.

        That is a new attempt: events of the old one are ignored from now on. `handoff`: where its prompt's KV lies.
        `died`: the worker, perhaps by this request, which therefore is not tried for ever.
        """
        flight.deaths += died
        flight.early_deaths += died and not flight.got_on  # a request that got on is less likely to be the cause
        most = self._max_migrations
        if flight.early_deaths > most or flight.deaths > most * _INNOCENT:
            self.fail(flight, WorkerLost(f"{flight.deaths} workers have died with this request on them: given up."))
            return
        old = flight.job
        flight.again(handoff)
        if all(out.finished for out in flight.out):  # all that was to come is the last event
            self._end(flight, Done(old.request, flight.job.attempt))
            return
        MIGRATIONS.inc()
        task = flight.retry = asyncio.create_task(self._retry(flight, old))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    def worker_lost(self, worker: WorkerId, *, died: bool = True, queued: Container[RunId] = ()) -> int:
        """`lost` for all that is on it; tells how many that were. Those still `queued` had no part in its death."""
        # Those whose placing is under way are left out: they are found on it later, or not at all.
        flights = [f for f in self.flights.values() if f.is_placed and worker in dict(f.workers())]
        for flight in flights:
            self.lost(flight, died=died and flight.job.run not in queued)
        return len(flights)

    def fail(self, flight: Flight, error: XylemError) -> None:
        """Ends a request from this side."""
        if self.flights.pop(flight.job.request, None) is not None:
            flight.wait_no_more()
            flight.answer.push(Failed(flight.job.request, flight.job.attempt, error.code, error.message))

    def end_overdue(self, at: float) -> None:
        """Those whose time is over at that time of the monotonic clock."""
        for flight in [f for f in self.flights.values() if at > f.ends]:
            self.fail(flight, DeadlineOver())
            self.placer.leave(flight.job)

    async def _retry(self, flight: Flight, old: Job) -> None:
        self.placer.leave(old)  # its worker may live, and run it still
        try:
            if flight.deaths < _SUSPICIOUS:
                await self.placer.place(flight)
                return
            async with self._suspects:
                await self.placer.place(flight)
                await self._proves_harmless(flight)
        except XylemError as exc:
            self.fail(flight, exc)

    async def _proves_harmless(self, flight: Flight) -> None:
        """Returns when it got on, or no further: it has ended, or was lost again.

        Requests that were on several workers that died are tried one after the other: which of them kills workers
        shows, and the others don't die with it once more.
        """
        awaited, this = self.flights, asyncio.current_task()
        while awaited.get(flight.job.request) is flight and flight.retry is this and not flight.got_on:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # an event would cost each token

    async def _stop(self, jobs: list[Job]) -> None:
        commands: list[Command] = []
        for job in jobs:
            commands.append(("UNLINK", self._keys.request(job.run)))
            for worker in (job.worker, job.prefill.worker) if job.prefill else (job.worker,):
                orders = self._keys.orders(worker)
                commands += [("RPUSH", orders, encode(Cancel(job.run))), ("EXPIRE", orders, _ORDERS_TTL_S)]
        if commands:
            await self._wire.execute(commands)
