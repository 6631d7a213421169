"""From a prompt to a worker's queue, and the account of what this process awaits.

Requests are placed in rounds: one read of the fleet, one decision after the other, each seeing those before
it, and one write. A request that arrives during a round waits for the next. So a request costs two round
trips, and a burst of a thousand costs two as well.
"""

import asyncio
import time
from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from app.api.answer import Answer
from app.api.fleet import FleetReader
from app.errors import NoWorker, Returned, StoreDown, WorkerLost, XylemError
from app.ids import ApiId, PoolId, RequestId, WorkerId, worker_queue
from app.keys import Keys
from app.messages import Delta, Event, Failed, Job, encode
from app.routing.fleet import Ask, Candidate, Limits
from app.routing.policy import place, reserve
from app.store import PLACE, Command, Wire
from app.tasks.message import DECODE_TASK, priority_step, task_message
from app.telemetry import logger

log = logger(__name__)

_GRACE_S = 30  # a record outlives its deadline by this, so that the worker can answer for it
_MAX_PLACINGS = 5
# With this many in flight a round first waits a little for others to join it: a round costs the CPU of a sixth of
# a short request, and at such a load the wait is a small part of the time to the first token.
_BUSY, _GATHER_S = 32, 0.002
_CANCEL_TTL_S = 60


class Flight:
    """A request on its way: what is sent, where to, and who awaits it."""

    __slots__ = ("answer", "began", "job", "placed", "placings", "pools")

    def __init__(self, job: Job, pools: tuple[PoolId, ...], answer: Answer) -> None:
        self.job, self.pools, self.answer = job, pools, answer
        self.began = False  # a token has come back
        self.placings = 0
        self.placed: asyncio.Future[None]


class Dispatcher:
    """Places requests and routes their events. On the API's event loop."""

    def __init__(self, wire: Wire, keys: Keys, api: ApiId, fleet: FleetReader, limits: Limits) -> None:
        self._wire, self._keys, self.api, self._fleet, self._limits = wire, keys, api, fleet, limits
        self._rng = Random()  # noqa: S311 (spreads load, guards nothing)
        self._waiting: list[Flight] = []
        self._rounds: asyncio.Task[None] | None = None
        self._retries: set[asyncio.Task[None]] = set()
        self.flights: dict[RequestId, Flight] = {}

    async def send(self, job: Job, pools: tuple[PoolId, ...], answer: Answer) -> None:
        """Places an unplaced job on a worker of one of `pools`. Whatever comes of it, `cancel` is to be called.

        Raises: NoWorker, Saturated, StoreDown.
        """
        flight = self.flights[job.request] = Flight(job, pools, answer)
        await self._place(flight)

    async def cancel(self, requests: Sequence[RequestId]) -> None:
        """Gives up on those of `requests` that have not ended: nothing of them comes any more, their engines stop.

        Raises: StoreDown.
        """
        flights = [f for f in (self.flights.pop(r, None) for r in requests) if f is not None]
        await self._stop([f.job for f in flights if f.job.worker])

    def deliver(self, event: Event) -> None:
        """Hands an event to whoever awaits it. Those of an older attempt, and of ended requests, are dropped."""
        flight = self.flights.get(event.request)
        if flight is None or event.attempt != flight.job.attempt:
            return
        if type(event) is Delta:
            flight.began = True
        elif type(event) is Failed and event.code == Returned.code:
            self.lost(flight)
            return
        else:
            del self.flights[event.request]
        flight.answer.push(event)

    def lost(self, flight: Flight) -> None:
        """Its worker won't finish it: it ends with an error if a token is out, and else is placed once more.

        That is a new attempt: events of the old one are ignored from now on.
        """
        if flight.began:
            self.fail(flight, WorkerLost())
            return
        old = flight.job
        flight.job = replace(old, attempt=old.attempt + 1, worker=WorkerId(""))
        task = asyncio.create_task(self._retry(flight, old))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    def worker_lost(self, worker: WorkerId) -> int:
        """`lost` for all that is on it; tells how many that were."""
        flights = [f for f in self.flights.values() if f.job.worker == worker]
        for flight in flights:
            self.lost(flight)
        return len(flights)

    def fail(self, flight: Flight, error: XylemError) -> None:
        """Ends a request from this side."""
        if self.flights.pop(flight.job.request, None) is not None:
            flight.answer.push(Failed(flight.job.request, flight.job.attempt, error.code, error.message))

    async def _retry(self, flight: Flight, old: Job) -> None:
        try:
            await self._stop([old])  # it may live, and run there still
            await self._place(flight)
        except XylemError as exc:
            self.fail(flight, exc)

    async def _stop(self, jobs: list[Job]) -> None:
        commands: list[Command] = []
        for job in jobs:
            commands += [
                ("UNLINK", self._keys.request(job.run)),
                ("RPUSH", self._keys.cancel(job.worker), job.run),
                ("EXPIRE", self._keys.cancel(job.worker), _CANCEL_TTL_S),
            ]
        if commands:
            await self._wire.execute(commands)

    async def _place(self, flight: Flight) -> None:
        flight.placed = asyncio.get_running_loop().create_future()
        self._waiting.append(flight)
        if self._rounds is None:
            self._rounds = asyncio.create_task(self._run_rounds())
        await flight.placed

    async def _run_rounds(self) -> None:
        try:
            while self._waiting:
                if len(self.flights) > _BUSY:
                    await asyncio.sleep(_GATHER_S)
                flights, self._waiting = self._waiting, []
                for left in (f for f in flights if not self._awaited(f)):
                    _settle(left, None)  # its answer has its end, or nobody waits for one
                flights = [f for f in flights if self._awaited(f)]
                try:
                    await self._round(flights)
                except Exception as exc:  # noqa: BLE001 (whatever it was, no client waits for ever)
                    for flight in flights:
                        _settle(flight, exc)
        finally:
            self._rounds = None

    async def _round(self, flights: list[Flight]) -> None:
        groups = sorted({f.pools for f in flights})
        fleets = dict(zip(groups, await self._fleet.candidates(*groups), strict=True))
        placed: list[Flight] = []
        commands: list[Command] = []
        for flight in flights:
            try:
                commands.append(self._decide(flight, fleets))
                placed.append(flight)
            except Exception as exc:  # noqa: BLE001 (one request that can't be placed is no trouble of the others)
                _settle(flight, exc)
        for flight, written in zip(placed, await self._wire.execute_each(commands) if commands else (), strict=True):
            if isinstance(written, StoreDown):
                flight.job = replace(flight.job, worker=WorkerId(""))
                _settle(flight, written)
            elif written:
                _settle(flight, None)
            else:  # the worker went between the two round trips: decide again
                self._waiting.append(flight)
        await self._stop([f.job for f in placed if not self._awaited(f)])

    def _awaited(self, flight: Flight) -> bool:
        return self.flights.get(flight.job.request) is flight

    def _decide(self, flight: Flight, fleets: dict[tuple[PoolId, ...], list[Candidate]]) -> Command:
        """The command that places this request. Raises: NoWorker, Saturated."""
        flight.placings += 1
        if flight.placings > _MAX_PLACINGS:
            raise NoWorker("The workers of this model keep going away. Try again.")
        ask = Ask(len(flight.job.prompt), flight.job.sampling.max_tokens, flight.job.sampling.n)
        to = place(ask, fleets[flight.pools], self._limits, self._rng)
        job = flight.job = replace(flight.job, pool=to.pool, worker=to.worker)
        keys, queue, step = self._keys, worker_queue(to.pool, to.worker), priority_step(job.priority)
        names = (
            keys.worker(to.worker),
            keys.request(job.run),
            keys.reservations(to.worker),
            keys.load(to.worker),
            keys.queue(queue, step),
        )
        ttl_ms = max(1, round((job.deadline - time.time() + _GRACE_S) * 1000))
        message = task_message(DECODE_TASK, queue, job.request, job.attempt, step)
        record = encode(job)
        for pools, fleet in fleets.items():
            fleets[pools] = reserve(fleet, to)
        return ("EVAL", PLACE, len(names), *names, job.run, record, ttl_ms, to.blocks, to.tokens, message)


def _settle(flight: Flight, error: Exception | None) -> None:
    """Wakes who waits for the placement; nobody does when its request was cancelled."""
    if flight.placed.done():
        return
    if error is None:
        flight.placed.set_result(None)
        return
    if not isinstance(error, XylemError):
        log.error("placement_failed", request=flight.job.request, exc_info=error)
    flight.placed.set_exception(error if isinstance(error, XylemError) else XylemError())
