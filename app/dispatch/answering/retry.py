"""Requests whose worker died, left or gave them back: placed anew to continue their output, or given up."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, nullcontext
from itertools import chain

from msgspec.structs import replace

from app.dispatch.answering.deaths import Deaths
from app.dispatch.inflight import InFlight
from app.dispatch.media.media_store import MediaStore
from app.dispatch.placing.placer import Placer
from app.errors import AdapterLoading, Returned, WorkerLost, XylemError
from app.ids import HOME, CellId, PoolId, RequestId
from app.messages.events import Done, Failed
from app.messages.handoff import KvHandle
from app.messages.job import Job
from app.store.handling import SuspectTurn
from app.telemetry import MIGRATIONS

_SUSPICIOUS = 2  # deaths of workers after which a request may be their cause
# Who has found no room by then waits for another turn: some rounds of placement, or the time to load an adapter.
_ROOM_S, _LOAD_S = 0.2, 5.0
_INNOCENT = 3  # times `max_migrations` workers may die if the request had output each time


class Retry:
    """The retry of requests that have lost their workers. Lives on the API's event loop."""

    def __init__(
        self,
        in_flight: Mapping[RequestId, InFlight],
        placers: Mapping[CellId, Placer],
        end: Callable[[InFlight, Done | Failed], None],
        fail: Callable[[InFlight, XylemError], None],
        max_migrations: int,
        deaths: Deaths,
        media: MediaStore | None = None,
    ) -> None:
        """`in_flight`: the awaited requests. `placers`: of each cell. `end` and `fail` end an awaited request.

        `media`: as `Dispatcher` has it.
        """
        self._in_flight, self._placers, self._end, self._fail = in_flight, placers, end, fail
        self._deaths, self._media = deaths, media
        self._max_migrations = max_migrations
        self._tasks: set[asyncio.Task[None]] = set()
        self._suspects: defaultdict[frozenset[PoolId], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._seldom: defaultdict[frozenset[PoolId], asyncio.Lock] = defaultdict(asyncio.Lock)

    def lost(self, inflight: InFlight, handoff: KvHandle | None = None, *, died: bool = False) -> None:
        """Its worker won't finish the request: another one continues its output, as a new attempt.

        `handoff`: where its prompt's KV is. `died`: the worker died, perhaps because of this request: too many deaths
        end it with WorkerLost.
        """
        inflight.deaths += died
        inflight.early_deaths += died and not inflight.has_own_output  # output makes it a less likely cause
        most = self._max_migrations
        if inflight.early_deaths > most or inflight.deaths > most * _INNOCENT:
            self._placers[inflight.attempt.cell].stop_later(inflight.job)  # at the worker that was to go on with it
            self._fail(
                inflight, WorkerLost(f"{inflight.deaths} workers died with this request on them. It is not retried.")
            )
            return
        kind = "died" if died else "begun" if inflight.has_output else "unbegun"
        old = inflight.job
        inflight.again(handoff, WorkerLost.code if died else Returned.code)
        if all(out.finished for out in inflight.out):  # only the last event was missing
            self._end(inflight, Done(old.request, inflight.job.attempt))
            return
        MIGRATIONS.labels(kind).inc()
        inflight.retry = self._started(self._again(inflight, old))
        if died:
            self._started(self._deaths.note(inflight))

    def _started(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _again(self, inflight: InFlight, old: Job) -> None:
        before = self._placers[inflight.attempt.cell]
        before.stop_later(old)  # its worker may live and still run it
        placer = self._placers[HOME] if inflight.attempt.handoff is None else before  # KV stays in its cell
        try:
            if inflight.samples_lost:
                await self._store_again(inflight)
            if inflight.deaths < _SUSPICIOUS:
                await placer.place(inflight)
                return
            while not await self._tried(inflight, placer):
                pass
        except XylemError as exc:
            self._fail(inflight, exc)

    async def _tried(self, inflight: InFlight, placer: Placer) -> bool:
        """Places a suspect. False: it has found no room, and is not held any more.

        Requests that were on several dead workers, and may go to the same ones, are tried one after the other: that
        shows which of them kills workers, and keeps the others from dying with it once more. Returns when the request
        has output, has ended, or was lost again; or after some seconds, as it may make no token for hours.

        Raises: XylemError, as `Placer.place` does.
        """
        this, wait_start = asyncio.current_task(), time.monotonic()
        async with self._turn(inflight) as turn:
            began = time.monotonic()
            if since := inflight.attempt.held_since:  # patience is for the time in which it might find room
                inflight.attempt = replace(inflight.attempt, held_since=since + began - wait_start)
            placing = self._started(placer.place(inflight))
            while (
                self._in_flight.get(inflight.job.request) is inflight
                and inflight.retry is this
                and not (inflight.has_own_output or turn.is_over)
            ):
                if placing.done():
                    placing.result()
                room_s = _LOAD_S if isinstance(inflight.attempt.refused, AdapterLoading) else _ROOM_S
                is_late = not inflight.job.worker and time.monotonic() > began + room_s
                if is_late and self._placers[inflight.attempt.cell].queue.withdraw(inflight):
                    return False
                await asyncio.sleep(0.05)  # an asyncio.Event would add work to each token
        await placing
        return True

    @asynccontextmanager
    async def _turn(self, inflight: InFlight) -> AsyncIterator[SuspectTurn]:
        """Waits for it: suspects of batches and of all adapters meet on the same workers.

        Those wait in a line of their own, as they find room more seldom: any other waits for one of them at most.
        """
        pools = frozenset(chain.from_iterable(inflight.groups))
        seldom = inflight.job.aside or inflight.job.adapter is not None
        async with self._seldom[pools] if seldom else nullcontext():
            await self._suspects[pools].acquire()
            turn = SuspectTurn(self._suspects[pools])
            try:
                yield turn
            finally:
                turn.over()

    async def _store_again(self, inflight: InFlight) -> None:
        """Its media, which its worker did not get: waits for room, as it has been accepted. Raises: XylemError."""
        samples, media = inflight.samples, self._media
        assert samples is not None
        assert media is not None
        inflight.held_at(await media.put(samples._replace(deadline_s=inflight.ends_at - time.monotonic(), waits=True)))
        if self._in_flight.get(inflight.job.request) is not inflight:  # it has ended meanwhile, and they were released
            media.release(samples.request)
