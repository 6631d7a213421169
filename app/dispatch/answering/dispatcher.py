"""The requests that this process awaits: sends their prompts, delivers their events, cancels them."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from msgspec.structs import replace

from app.dispatch.answering.content_hook import ContentHook
from app.dispatch.answering.deaths import Deaths
from app.dispatch.answering.retry import Retry
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight
from app.dispatch.media.expansions import Expansions
from app.dispatch.media.media_store import MediaStore
from app.dispatch.observing.recorder import Recorder
from app.dispatch.observing.timeline import Timelines
from app.dispatch.observing.traffic import TrafficCounter
from app.dispatch.placing.placer import Placer
from app.errors import (
    Cancelled,
    DeadlineOver,
    EngineDead,
    EngineFailed,
    HandoffFailed,
    MediaLost,
    Returned,
    StoreDown,
    XylemError,
)
from app.ids import HOME, ApiId, CellId, PoolId, RequestId, RunId, WorkerId
from app.keys import Keys
from app.messages.events import (
    Delta,
    Done,
    Event,
    Failed,
    FirstToken,
    PicturesEncoded,
    PrefillDone,
    Searched,
)
from app.messages.handoff import KvHandle
from app.messages.wanted import Adapter
from app.pools.schema import Pool
from app.store import Wire
from app.telemetry import logger
from app.usage.outbox import UsageOutbox

log = logger(__name__)

_MOST_LOST = 3  # times that Redis may lose the media of a request
# After these errors of a worker of an earlier stage, the decode worker does its part.
_STAGE_FAILED = {error.code for error in (EngineFailed, EngineDead, HandoffFailed)}


class Dispatcher:
    """The dispatcher of the requests that this process awaits. Lives on the API's event loop."""

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
        wake_pool: Callable[[PoolId], None] = lambda _pool: None,
        token_redis: int = 0,
        broker: Wire | None = None,
        media: MediaStore | None = None,
        *,
        timelines: Timelines | None = None,
        expansions: Expansions | None = None,
        recorder: Recorder | None = None,
        traffic: TrafficCounter | None = None,
        usage: UsageOutbox | None = None,
        hook: ContentHook | None = None,
    ) -> None:
        """`patience_s`: seconds that a request waits for Redis, or for a worker, before it is refused.

        `adapter`: the LoRA adapter of that name, as it is wanted now. `token_redis`: `Job.token_redis` of its jobs.
        `broker`: as `Placer` has it. `media`: for requests with pictures; None: there are none. `expansions`: None:
        models' files alone say what media become. `recorder`, `traffic`: of an API replica. `usage`: None: what
        requests use is not recorded. `hook`: None: nobody inspects contents.
        """
        self.media, self.expansions = media, expansions
        self.api, self.token_redis = api, token_redis
        self.in_flight: dict[RequestId, InFlight] = {}
        self.timelines = timelines or Timelines()
        self.recorder, self.traffic, self.usage, self.hook = recorder, traffic, usage, hook
        self.placer = Placer(
            wire,
            keys,
            fleet,
            pools,
            retry_after_s=retry_after_s,
            patience_s=patience_s,
            in_flight=self.in_flight,
            fail=self.fail,
            adapter=adapter,
            wake_pool=wake_pool,
            token_redis=token_redis,
            broker=broker,
            api=api,
            step_aside=self.lost,
        )
        self.placers = {HOME: self.placer}  # of each cell
        self.deaths = Deaths(wire, keys)
        self._retry = Retry(
            self.in_flight, self.placers, self._end, self.fail, max_migrations, deaths=self.deaths, media=media
        )

    @property
    def watching(self) -> list[Recorder | TrafficCounter]:
        """The parts that work only while another process asks for it."""
        return [each for each in (self.recorder, self.traffic) if each is not None]

    async def send(self, inflight: InFlight) -> None:
        """Places an unplaced job on a worker of its pools. The caller calls `cancel` in any case, also after an error.

        Raises: NoWorker, Saturated, StoreDown, DeadlineOver.
        """
        self.in_flight[inflight.job.request] = inflight
        await self.placer.place(inflight)

    async def cancel(self, requests: Sequence[RequestId]) -> None:
        """Cancels the `requests` that have not ended: they get no more events, and their engines stop.

        While Redis is unreachable, the engines are told later.
        """
        in_flight = [f for f in (self.in_flight.pop(r, None) for r in requests) if f is not None]
        for cell in {f.attempt.cell for f in in_flight if f.job.worker}:
            jobs, placer = [f.job for f in in_flight if f.job.worker and f.attempt.cell == cell], self.placers[cell]
            try:
                await placer.stop(jobs)
            except StoreDown as exc:
                log.warning("cancelled_later", requests=len(jobs), error=exc.message)
                for job in jobs:
                    placer.stop_later(job)

    def spent(self, in_flight: Iterable[InFlight], answers: Iterable[Done]) -> None:
        """Charges tenants what their ended requests have really cost, whether these have an answer or not."""
        ends = {end.request: end for end in answers}
        for f in in_flight:
            self.placers[f.attempt.cell].shares.ended(f, ends.get(f.job.request))

    def in_cell(self, cell: CellId) -> Iterable[InFlight]:
        return [f for f in self.in_flight.values() if f.attempt.cell == cell]

    def abandon(self, requests: Sequence[RequestId]) -> None:
        """Drops the `requests` that are on no worker yet."""
        for request in requests:
            inflight = self.in_flight.get(request)
            if inflight is not None and not inflight.job.worker:
                del self.in_flight[request]
                inflight.end_wait()

    def deliver(self, *events: Event) -> None:
        """Adds events to their answers. Those of older attempts and of ended requests are dropped."""
        lookup = self.in_flight.get
        for event in events:
            inflight = lookup(event.request)
            if inflight is None or event.attempt != inflight.attempt.job.attempt:
                continue
            if type(event) is Delta:
                attempt = inflight.attempt
                if attempt.before_first is not None:
                    attempt.before_first.append(event)
                    continue
                if attempt.stage_index != -1:
                    inflight.attempt = attempt.at_stage(-1)
                inflight.out[event.index].add(event)
                inflight.answer.push(event)
            elif type(event) is FirstToken:
                self._first_token(inflight, event)
            elif type(event) is PicturesEncoded:
                inflight.attempt = inflight.attempt.pictures_encoded()
            elif type(event) is PrefillDone:
                self._prefill_done(inflight, event)
            elif type(event) is Done:
                self._done(inflight, event)
            elif type(event) is Failed:
                self._failed(inflight, event)
            elif type(event) is Searched:
                inflight.unshown = event.tokens
            else:
                inflight.answer.push(event)

    def _first_token(self, inflight: InFlight, event: FirstToken) -> None:
        early = inflight.attempt.before_first or []
        inflight.attempt = replace(inflight.attempt, before_first=None, first_tokens=len(event.delta.tokens))
        inflight.out[0].add(event.delta)
        inflight.answer.push(event.delta)
        self.deliver(*early)

    def _prefill_done(self, inflight: InFlight, event: PrefillDone) -> None:
        inflight.attempt = inflight.attempt.prefilled(event.timing)
        if event.returned is None:
            inflight.attempt = inflight.attempt.at_stage(-1)
        else:
            self.lost(inflight, event.returned)

    def _failed(self, inflight: InFlight, event: Failed) -> None:
        attempt, stage_failed = inflight.attempt, event.code in _STAGE_FAILED
        # The worker may have believed this replica dead: the request is still awaited, so it is placed anew.
        if event.code in (Returned.code, Cancelled.code):
            self.lost(inflight)
        elif stage_failed and attempt.stage == "encode_pictures":
            inflight.attempt = replace(attempt, may_encode=False)
            self.lost(inflight)
        elif stage_failed and attempt.stage == "prefill":
            inflight.attempt = replace(attempt, may_split=False)
            self.lost(inflight)
        elif event.code == MediaLost.code and inflight.samples is not None and inflight.samples_lost < _MOST_LOST:
            inflight.samples_lost += 1
            self.lost(inflight)
        elif event.code == EngineDead.code or (event.code == HandoffFailed.code and inflight.job.at_once):
            self.lost(inflight, died=True)  # an engine, or what two of them had begun together
        else:
            self._end(inflight, event)

    def _done(self, inflight: InFlight, event: Done) -> None:
        attempt = inflight.attempt
        if attempt.before_first is not None:
            attempt.before_first.append(event)
            return
        prefill_timing, inflight.unshown = attempt.job.prefilled, event.unshown
        self.placers[attempt.cell].audit(inflight, event)
        # If both workers began at once, the decode worker doesn't know the prefill's timing.
        inflight.timings = [prefill_timing, *event.timings] if attempt.job.at_once and prefill_timing else event.timings
        self._end(inflight, event)

    def _end(self, inflight: InFlight, event: Done | Failed) -> None:
        del self.in_flight[event.request]
        self.placer.request_ended()
        inflight.answer.push(event)

    def lost(self, inflight: InFlight, handoff: KvHandle | None = None, *, died: bool = False) -> None:
        """Its worker won't finish the request: see `Retry.lost`."""
        if died and inflight.attempt.stage == "encode_pictures":
            inflight.attempt = replace(inflight.attempt, may_encode=False)
        self._retry.lost(inflight, handoff, died=died)

    def worker_lost(self, worker: WorkerId, *, died: bool = True, in_queue: Container[RunId] = ()) -> int:
        """`lost` for each request on the worker; returns how many. Runs still `in_queue` can't have killed it."""
        # Requests that are just being placed are left out: the next look finds them, if they got there.
        in_flight = [f for f in self.in_flight.values() if f.is_placed and worker in dict(f.attempt.workers)]
        for inflight in in_flight:
            self.lost(inflight, died=died and inflight.job.run not in in_queue)
        return len(in_flight)

    def fail(self, inflight: InFlight, error: XylemError) -> None:
        """Ends a request with an error of this process."""
        if self.in_flight.pop(inflight.job.request, None) is not None:
            inflight.end_wait()
            run = inflight.job.request, inflight.job.attempt
            inflight.answer.push(Failed(*run, error.code, error.message, error.param))

    def end_overdue(self, at: float) -> None:
        """Ends the requests whose deadline is before `at`, seconds of the monotonic clock."""
        for inflight in [f for f in self.in_flight.values() if at > f.ends_at]:
            self.fail(inflight, DeadlineOver())
            self.placers[inflight.attempt.cell].stop_later(inflight.job)
