"""The account of what this process awaits: sends prompts off, hands their events on, gives up on them."""

from collections.abc import Callable, Container, Mapping, Sequence

from msgspec.structs import replace

from app.dispatch.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight
from app.dispatch.placer import Placer
from app.dispatch.retry import Retry
from app.dispatch.timeline import Timelines
from app.errors import (
    Cancelled,
    DeadlineOver,
    EngineDead,
    EngineFailed,
    HandoffFailed,
    Returned,
    StoreDown,
    XylemError,
)
from app.ids import ApiId, PoolId, RequestId, RunId, WorkerId
from app.keys import Keys
from app.messages import (
    Adapter,
    Cancel,
    Delta,
    Done,
    Event,
    Failed,
    FirstToken,
    Job,
    KvHandle,
    PrefillDone,
    Vectors,
    encode,
)
from app.pools import Pool
from app.store import Command, Wire
from app.telemetry import logger

log = logger(__name__)

_COMMANDS_TTL_S = 60
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
        adapter: Callable[[str], Adapter | None] = lambda _: None,
    ) -> None:
        """`patience_s`: how long a request that can't be placed waits for Redis, or for a worker.

        `adapter`: the LoRA adapter of that name, as it is wanted now.
        """
        self._wire, self._keys, self.api = wire, keys, api
        self.in_flight: dict[RequestId, InFlight] = {}
        self.timelines = Timelines()
        self.placer = Placer(
            wire, keys, fleet, pools, retry_after_s, patience_s, self.in_flight, self._stop, self.fail, adapter
        )
        self._retry = Retry(self.in_flight, self.placer, self._end, self.fail, max_migrations)

    async def send(self, inflight: InFlight) -> None:
        """Places an unplaced job on a worker of its pools. Whatever comes of it, `cancel` is to be called.

        Raises: NoWorker, Saturated, StoreDown, DeadlineOver.
        """
        self.in_flight[inflight.job.request] = inflight
        await self.placer.place(inflight)

    async def cancel(self, requests: Sequence[RequestId]) -> None:
        """Gives up on those of `requests` that have not ended: nothing of them comes any more, their engines stop.

        If Redis is away that happens later.
        """
        in_flight = [f for f in (self.in_flight.pop(r, None) for r in requests) if f is not None]
        jobs = [f.job for f in in_flight if f.job.worker]
        try:
            await self._stop(jobs)
        except StoreDown as exc:
            log.warning("cancelled_later", requests=len(jobs), error=exc.message)
            for job in jobs:
                self.placer.leave(job)

    def abandon(self, requests: Sequence[RequestId]) -> None:
        """Those of `requests` that are on no worker yet need not be placed any more."""
        for request in requests:
            inflight = self.in_flight.get(request)
            if inflight is not None and not inflight.job.worker:
                del self.in_flight[request]
                inflight.wait_no_more()

    def deliver(self, event: Event) -> None:
        """Hands an event to its answer. Those of an older attempt, and of ended requests, are dropped."""
        inflight = self.in_flight.get(event.request)
        if inflight is None or event.attempt != inflight.job.attempt:
            return
        if type(event) is Delta:
            if inflight.early is not None:
                inflight.early.append(event)
                return
            inflight.doing = -1
            inflight.out[event.index].add(event)
            inflight.answer.push(event)
        elif type(event) is FirstToken:
            self._first(inflight, event)
        elif type(event) is PrefillDone:
            self._handed(inflight, event)
        elif type(event) is Vectors:
            inflight.answer.push(event)
        elif type(event) is Done:
            self._done(inflight, event)
        elif type(event) is Failed:
            self._failed(inflight, event)

    def _first(self, inflight: InFlight, event: FirstToken) -> None:
        early, inflight.early = inflight.early or [], None
        inflight.out[0].add(event.delta)
        inflight.answer.push(event.delta)
        for other in early:
            self.deliver(other)

    def _handed(self, inflight: InFlight, event: PrefillDone) -> None:
        inflight.job = replace(inflight.job, prefilled=event.timing or inflight.job.prefilled)
        if event.returned is None:
            inflight.doing = -1  # as a delta may have said before
        else:
            self.lost(inflight, event.returned)

    def _failed(self, inflight: InFlight, event: Failed) -> None:
        # A worker that thought this replica dead gave up what is awaited all the same.
        if event.code in (Returned.code, Cancelled.code):
            self.lost(inflight)
        elif inflight.prefilling and event.code in _ELSEWHERE:
            inflight.apart = False
            self.lost(inflight)
        elif event.code == EngineDead.code:
            self.lost(inflight, died=True)
        else:
            self._end(inflight, event)

    def _done(self, inflight: InFlight, event: Done) -> None:
        if inflight.early is not None:
            inflight.early.append(event)
            return
        prefilled = inflight.job.prefilled
        # At once, the worker that answers doesn't know how the other one fared.
        inflight.timings = [prefilled, *event.timings] if inflight.job.at_once and prefilled else event.timings
        self._end(inflight, event)

    def _end(self, inflight: InFlight, event: Done | Failed) -> None:
        del self.in_flight[event.request]
        self.placer.room()
        inflight.answer.push(event)

    def lost(self, inflight: InFlight, handoff: KvHandle | None = None, *, died: bool = False) -> None:
        """Its worker won't finish it: see `Retry.lost`."""
        self._retry.lost(inflight, handoff, died=died)

    def worker_lost(self, worker: WorkerId, *, died: bool = True, queued: Container[RunId] = ()) -> int:
        """`lost` for all that is on it; tells how many that were. Those still `queued` had no part in its death."""
        # Those whose placing is under way are left out: they are found on it later, or not at all.
        in_flight = [f for f in self.in_flight.values() if f.is_placed and worker in dict(f.workers())]
        for inflight in in_flight:
            self.lost(inflight, died=died and inflight.job.run not in queued)
        return len(in_flight)

    def fail(self, inflight: InFlight, error: XylemError) -> None:
        """Ends a request from this side."""
        if self.in_flight.pop(inflight.job.request, None) is not None:
            inflight.wait_no_more()
            inflight.answer.push(Failed(inflight.job.request, inflight.job.attempt, error.code, error.message))

    def end_overdue(self, at: float) -> None:
        """Those whose time is over at that time of the monotonic clock."""
        for inflight in [f for f in self.in_flight.values() if at > f.ends]:
            self.fail(inflight, DeadlineOver())
            self.placer.leave(inflight.job)

    async def _stop(self, jobs: list[Job]) -> None:
        commands: list[Command] = []
        for job in jobs:
            commands.append(("UNLINK", self._keys.request(job.run)))
            for stage in job.stages:
                key = self._keys.commands(stage.worker)
                commands += [("RPUSH", key, encode(Cancel(job.run))), ("EXPIRE", key, _COMMANDS_TTL_S)]
        if commands:
            await self._wire.execute(commands)
