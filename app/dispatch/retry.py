"""Requests whose worker died, left or gave them back: placed anew behind what is out, or given up."""

import asyncio
from collections.abc import Callable, Mapping

from app.dispatch.inflight import InFlight
from app.dispatch.placer import Placer
from app.errors import WorkerLost, XylemError
from app.ids import RequestId
from app.messages import Done, Failed, Job, KvHandle
from app.telemetry import MIGRATIONS

_SUSPICIOUS = 2  # so many workers have died with a request
_INNOCENT = 3  # times as many may die when each time something had come of it


class Retry:
    """On the API's event loop."""

    def __init__(
        self,
        in_flight: Mapping[RequestId, InFlight],
        placer: Placer,
        end: Callable[[InFlight, Done | Failed], None],
        fail: Callable[[InFlight, XylemError], None],
        max_migrations: int,
    ) -> None:
        """`in_flight` are the requests that are awaited; `end` and `fail` end one of them."""
        self._in_flight, self._placer, self._end, self._fail = in_flight, placer, end, fail
        self._max_migrations = max_migrations
        self._tasks: set[asyncio.Task[None]] = set()
        self._suspects = asyncio.Lock()

    def lost(self, inflight: InFlight, handoff: KvHandle | None = None, *, died: bool = False) -> None:
        """Its worker won't finish it: another one goes on behind what is out.

        That is a new attempt: events of the old one are ignored from now on. `handoff`: where its prompt's KV lies.
        `died`: the worker, perhaps by this request, which therefore is not tried for ever.
        """
        inflight.deaths += died
        inflight.early_deaths += died and not inflight.got_on  # a request that got on is less likely to be the cause
        most = self._max_migrations
        if inflight.early_deaths > most or inflight.deaths > most * _INNOCENT:
            self._fail(
                inflight, WorkerLost(f"{inflight.deaths} workers have died with this request on them: given up.")
            )
            return
        old = inflight.job
        inflight.again(handoff)
        if all(out.finished for out in inflight.out):  # all that was to come is the last event
            self._end(inflight, Done(old.request, inflight.job.attempt))
            return
        MIGRATIONS.inc()
        task = inflight.retry = asyncio.create_task(self._again(inflight, old))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _again(self, inflight: InFlight, old: Job) -> None:
        self._placer.leave(old)  # its worker may live, and run it still
        try:
            if inflight.deaths < _SUSPICIOUS:
                await self._placer.place(inflight)
                return
            async with self._suspects:
                await self._placer.place(inflight)
                await self._proves_harmless(inflight)
        except XylemError as exc:
            self._fail(inflight, exc)

    async def _proves_harmless(self, inflight: InFlight) -> None:
        """Returns when it got on, or no further: it has ended, or was lost again.

        Requests that were on several workers that died are tried one after the other: which of them kills workers
        shows, and the others don't die with it once more.
        """
        awaited, this = self._in_flight, asyncio.current_task()
        while awaited.get(inflight.job.request) is inflight and inflight.retry is this and not inflight.got_on:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # an event would cost each token
