"""Renews this process's lease, reads what has changed; finds dead workers, and requests that are overdue or lost."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import chain

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.token_inbox import TokenInbox
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.models.adapter_table import AdapterTable
from app.errors import StoreDown
from app.ids import HOME, CellId, PlaceId, PoolId, RunId, WorkerId, place_id, run_id, worker_queue
from app.intervals import Intervals
from app.keys import PRIORITY_STEPS, Keys
from app.messages.celery_message import read_task_message
from app.pools.schema import Pool
from app.running.loops import keep
from app.store import Command, Wire, clock
from app.store.scripts import FORGET_LOADS, FORGET_PROMPTS, TELL
from app.telemetry import WORKERS_LOST, logger

log = logger(__name__)

_OVERDUE_EVERY_S = 0.1
_LAST_EVENTS_S = 1.0
_BROKER_S = 1.0
_INTERVALS = Intervals()
_LEFTOVER_TTL_S = 600  # for a dead worker's keys: other API replicas have yet to look, and it may come back


class LivenessWatch:
    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        dispatcher: Dispatcher,
        inbox: TokenInbox,
        fleet: FleetReader,
        pools: Mapping[PoolId, Pool],
        adapters: AdapterTable | None,
        intervals: Intervals = _INTERVALS,
        broker: Wire | None = None,
        cell: CellId = HOME,
        *,
        counts: bool = False,
    ) -> None:
        """`adapters`: None in other cells than this process's own, whose adapters and clock aren't used.

        `broker`: as `Placer` has it. `counts`: lost workers, which one of the processes that see it does.
        """
        self._cell, self._counts = cell, counts
        self.looked = False  # once at least
        self.failing_since: float | None = None  # monotonic; None: the last look succeeded
        self._intervals = intervals
        self._wire, self._keys, self._dispatcher, self._inbox = wire, keys, dispatcher, inbox
        self._broker = broker
        self._fleet, self._pools, self._adapters = fleet, pools, adapters
        self._records_in_doubt = True  # Redis may have lost records of placed requests

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            if self._cell == HOME:  # for all cells
                both.create_task(self._end_overdue())
            both.create_task(self._keep_looking())

    async def _end_overdue(self) -> None:
        """Ends overdue requests, apart from the looks, which may wait long for Redis."""

        def end() -> None:
            self._dispatcher.end_overdue(time.monotonic())

        await keep("overdue_not_ended", end, _OVERDUE_EVERY_S, later=True)

    async def look(self, now: float) -> None:
        """One look: one round trip, if nothing has changed. `now`: monotonic. Raises: StoreDown."""
        own, ttl_ms = self._keys.api(self._dispatcher.api), round(self._intervals.api_ttl_s * 1000)
        # PEXPIRE first: Redis accepts it even when it is out of memory.
        lease: list[Command] = [("PEXPIRE", own, ttl_ms), ("SET", own, "1", "PX", ttl_ms), ("TIME",)]
        send_time = time.monotonic()
        adapters = [] if self._adapters is None else [self._adapters.question]
        watching = self._dispatcher.watching if self._cell == HOME else []
        questions = [each.question for each in watching]
        replies = await self._wire.execute_each([*lease, *self._fleet.questions(), *adapters, *questions])
        had_lease, _, theirs, *of_fleet = replies
        for each in reversed(watching):
            each.answered(of_fleet.pop())
        version = of_fleet.pop() if adapters else None
        for reply in (version, *of_fleet[::2]):  # the other replies may be refusals, without memory
            if isinstance(reply, StoreDown):
                raise reply
        if self._cell == HOME and not isinstance(theirs, StoreDown):
            clock.heard(send_time, theirs)
        self._records_in_doubt = self._records_in_doubt or not had_lease or not self._is_steady()
        if self._adapters is not None:
            await self._adapters.answered(version)
        await self._fleet.answered(of_fleet, now)
        await self._look_for_dead_workers()
        await self._look_for_forgotten_requests()

    async def _keep_looking(self) -> None:
        await keep("workers_not_looked_at", self._look_again, self._intervals.look_s, later=True, cell=self._cell)

    async def _look_again(self) -> None:
        """Raises: StoreDown."""
        try:
            await self.look(time.monotonic())
        except StoreDown:
            if self.failing_since is None:
                self.failing_since = time.monotonic()
            raise
        self.looked, self.failing_since = True, None

    def _is_steady(self) -> bool:
        return self._wire.is_steady() and self._inbox.is_steady()

    async def _look_for_forgotten_requests(self) -> None:
        """Finds requests without a record: Redis lost its last second, or a worker believed this replica dead."""
        if not self._records_in_doubt or not self._is_steady():
            return
        jobs = [f.job for f in self._dispatcher.in_cell(self._cell) if f.is_placed and f.job.worker]
        there = await self._wire.execute([("EXISTS", self._keys.request(job.run)) for job in jobs])
        forgotten_jobs = [job for job, is_there in zip(jobs, there, strict=True) if not is_there]
        if forgotten_jobs:
            await self._read_last_events()  # of requests that have ended
        for job in forgotten_jobs:
            inflight = self._dispatcher.in_flight.get(job.request)
            if inflight is not None and inflight.job.attempt == job.attempt:
                log.warning("request_was_forgotten", run=job.run, **job.names)
                self._dispatcher.lost(inflight)
        self._records_in_doubt = False

    async def _look_for_dead_workers(self) -> None:
        awaited_workers = dict(chain.from_iterable(f.attempt.workers for f in self._dispatcher.in_cell(self._cell)))
        missing = self._fleet.missing(awaited_workers)
        # A lease that is not understood is one, too.
        alive = await self._wire.execute([("EXISTS", self._keys.worker(w)) for w in missing])
        dead = {worker: pool for (worker, pool), lives in zip(missing.items(), alive, strict=True) if not lives}
        if dead and self._wire.is_steady():
            await self._remove_dead_workers(dead)

    async def _remove_dead_workers(self, dead: dict[WorkerId, PoolId]) -> None:
        await self._read_last_events()
        reservations = await self._wire.execute([("HKEYS", self._keys.reservations(worker)) for worker in dead])
        runs = [RunId(run.decode()) for on_one in reservations for run in on_one]
        queued_runs = await self._queued(dead)
        waiting = await self._wire.execute([("HKEYS", self._keys.prefilling(worker)) for worker in dead])
        commands = [self._removal(*of, prompts) for of, prompts in zip(dead.items(), waiting, strict=True)]
        # A batch's lines have a day, and their records would stay as long.
        commands.append([("EXPIRE", self._keys.request(run), _LEFTOVER_TTL_S, "LT") for run in runs])
        await self._wire.execute(list(chain.from_iterable(commands)))
        await self._forget_guesses(dead)
        self._fleet.removed(dead)
        for worker, pool in dead.items():
            count = self._dispatcher.worker_lost(worker, in_queue=queued_runs)
            log.error("worker_lost", worker=worker, pool=pool, requests=count)
        replies = await self._wire.execute(self._deaths(dead))
        if self._counts:
            WORKERS_LOST.inc(sum(replies[::3]))

    def _deaths(self, dead: Mapping[WorkerId, PoolId]) -> list[Command]:
        """Three commands for each; the first one's reply is 1 if no other process has noted it before."""
        now = clock.now()
        commands: list[Command] = []
        for worker, pool in dead.items():
            key = self._keys.lost(pool)
            commands += [
                ("ZADD", key, "NX", now, worker),
                ("ZREMRANGEBYSCORE", key, "-inf", now - _LEFTOVER_TTL_S),
                ("EXPIRE", key, _LEFTOVER_TTL_S),
            ]
        return commands

    async def _read_last_events(self) -> None:
        """Reads the stream's unread events. Raises: StoreDown, unless it is a server of tokens that is away."""
        if not self._inbox.is_apart_from(self._wire):
            await self._inbox.repair()
            return
        try:  # not for long: these looks renew this process's lease
            async with asyncio.timeout(_LAST_EVENTS_S):
                await self._inbox.repair()
        except (StoreDown, TimeoutError) as exc:
            log.warning("last_events_not_read", error=repr(exc))

    async def _queued(self, dead: Mapping[WorkerId, PoolId]) -> set[RunId]:
        """The runs in their queues: not begun. Lets the queues expire.

        Raises: StoreDown, unless it is the broker, and another server.
        """
        queues = [worker_queue(pool, worker) for worker, pool in dead.items()]
        names = [self._keys.queue(queue, step) for queue in queues for step in PRIORITY_STEPS]
        read: list[Command] = [("LRANGE", name, 0, -1) for name in names]
        expire: list[Command] = [("EXPIRE", name, _LEFTOVER_TTL_S) for name in names]
        if self._broker is None:
            replies = await self._wire.execute([*read, *expire])
        else:
            try:  # not for long: these looks renew this process's lease
                async with asyncio.timeout(_BROKER_S):
                    replies = await self._broker.execute([*read, *expire])
            except (StoreDown, TimeoutError) as exc:
                log.warning("queues_not_read", error=repr(exc))
                return set()
        messages = [read_task_message(raw) for raws in replies[: len(read)] for raw in raws]
        return {run_id(request, attempt) for _handoff, request, attempt in filter(None, messages)}

    def _places(self, worker: WorkerId, pool: PoolId) -> list[PlaceId]:
        return [place_id(worker, rank) for rank in range(self._pools[pool].data_parallel_size)]

    async def _forget_guesses(self, dead: Mapping[WorkerId, PoolId]) -> None:
        """Raises: StoreDown, unless it is an index apart that is away: the guesses expire by themselves."""
        guesses = [
            self._keys.predicted(pool, place) for worker, pool in dead.items() for place in self._places(worker, pool)
        ]
        commands: list[Command] = [("UNLINK", key) for key in guesses]
        if self._fleet.index.is_apart:
            await self._fleet.index.ask(commands)
        else:
            await self._wire.execute(commands)

    def _removal(self, worker: WorkerId, pool: PoolId, waiting: Sequence[bytes]) -> list[Command]:
        """`waiting`: runs that have no first token."""
        keys = self._keys
        leftovers = [keys.reservations(worker), keys.load(worker), keys.prefilling(worker)]
        return [
            ("HDEL", keys.pool(pool), worker),
            # A worker that comes back writes them anew.
            ("EVAL", FORGET_LOADS, 1, keys.loads(pool), *self._places(worker, pool)),
            ("EVAL", FORGET_PROMPTS, 1, keys.starting(pool), *waiting),
            ("EVAL", TELL, 1, keys.changed(pool), worker),
            *(("EXPIRE", key, _LEFTOVER_TTL_S) for key in leftovers),
        ]
