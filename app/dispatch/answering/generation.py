"""A request whose answer this process makes: sends its prompts, collects their events, observes the metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Self

from app.dispatch.answering.answer_account import AnswerAccount
from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.inspection import Inspection
from app.dispatch.answering.prompts import Adopted, Prompts
from app.dispatch.event_queue import EventQueue
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.corrections import corrections
from app.dispatch.observing.answer_meters import AnswerTimes, observe
from app.dispatch.observing.answer_trace import end_trace
from app.dispatch.observing.request_usage import record_of, used_by
from app.dispatch.observing.route_explanation import header
from app.dispatch.observing.timeline import Timeline
from app.errors import OK, Cancelled, XylemError, from_wire, outcome_of
from app.ids import new_request_id
from app.messages.events import GRAMMAR, Delta, Done, Event, Failed, Painted, Progress, Vectors
from app.messages.trace import log_names
from app.store import clock
from app.tenants.charge import Charge
from app.tenants.cost import Used
from app.tenants.records import NOBODY, Client
from app.tracing.request_trace import RequestTrace
from app.usage.record import LineTry, UsageRecord

_WATCH_AFTER_S = 0.2  # most requests have ended by then, and need no task that watches for a disconnect


class Generation(GenerationBase):
    """An answer made here. An async context manager: entering sends the prompts, leaving cancels unfinished ones."""

    batch_line: LineTry | None = None  # that it answers
    outlives = False  # whether another process continues it if this one is cut off
    _entered = False
    _inspection: Inspection | None = None  # if its contents are inspected or logged, once it is entered
    _watching: asyncio.TimerHandle | asyncio.Task[None] | None = None
    _first: float | None = None
    _failure = ""

    def __init__(
        self,
        plan: GenerationPlan,
        *,
        dispatcher: Dispatcher,
        client_left: Callable[[], Awaitable[None]] | None = None,
        charge: Charge | None = None,
        adoption: Adopted | None = None,
        client: Client = NOBODY,
        x_request_id: str = "",
        trace: RequestTrace | None = None,
    ) -> None:
        """`client_left` returns when the client has disconnected; None: there is no client. `adoption`: it is not new.

        `client_left` raises why the client can't be answered any more. `client`: who sent it. `x_request_id`: the
        client's own. `trace`: of the request; None: it has none.
        """
        came = clock.now() if adoption is None else adoption.came
        super().__init__(new_request_id(plan.prefix, dispatcher.api) if adoption is None else adoption.id, came, plan)
        self.client, self._trace = client, trace
        if trace is not None:
            trace.understood()
        self.x_request_id = x_request_id or self.id
        self._came, self._deadline = came, came + plan.timeout_s
        self._dispatcher, self._client_left = dispatcher, client_left
        self._account = AnswerAccount(charge, dispatcher.usage)
        self._begun = adoption
        self._prompts = Prompts(
            self.id, plan, dispatcher, client=client, deadline=self._deadline, trace=trace, adoption=adoption
        )
        self.answer = EventQueue()
        self._arrived = time.perf_counter()
        self._last = self._arrived

    async def __aenter__(self) -> Self:
        """Sends the prompts, the first time. Raises: RateLimited, BudgetUsed, NoWorker, Saturated, StoreDown."""
        if self._entered:
            return self
        self._entered = True
        if self._client_left is not None:
            self._watching = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._watch, self._client_left)
        self._dispatcher.timelines.began(self.id, self.client.key, self._prompts.in_flight)
        if self._dispatcher.hook is not None or self.client.tenant.content_logged:
            self._inspection = self._inspected()
        try:
            if (charge := self._account.charge) is not None:
                if self._begun is not None and self._begun.attempt:
                    await charge.adopt(self.id)
                else:
                    await charge.admit(self.id, self.plan.used(), self._deadline, self.plan.answer_tokens)
            # Of an adopted answer that has begun, its former owner has asked; of another one nobody may have.
            if self._inspection is not None and (self._begun is None or not self._begun.out):
                await self._inspection.prompt()
            traffic = self._dispatcher.traffic
            if traffic is not None and traffic.counts is not None and (self._begun is None or not self._begun.attempt):
                traffic.came(self.plan)
            await self._prompts.send(self.answer, self.x_request_id)
        except BaseException as exc:
            await self.__aexit__(None, exc, None)
            raise
        return self

    def _inspected(self) -> Inspection:
        names = log_names(self.x_request_id, "" if self._trace is None else self._trace.place.trace)
        hook = self._dispatcher.hook
        return Inspection(self.id, self.plan, self.client, hook, names, count=self.count, deadline=self._deadline)

    async def __aexit__(self, _type: object, exc: BaseException | None, _trace: object) -> None:
        """Cancels unfinished prompts, and observes the metrics."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None  # a cancelled task refers to the frame that was cancelled, and so to this call
        self.answer.divert(None)  # a sink refers to this call: both would wait for the garbage collector
        await self._finish(exc)

    async def deltas(self) -> list[tuple[int, Delta]]:
        if self._inspection is None:
            out = await self._next()
        else:
            out = await self._inspection.deltas(self._next, patient=self.batch_line is not None)
        if not out:
            await self._record_answer()
        return out

    async def _next(self) -> list[tuple[int, Delta]]:
        """Deltas as from `deltas`, before anybody has inspected them."""
        out: list[tuple[int, Delta]] = []
        while not out and len(self._prompts.done) < len(self.prompts):
            for event in await self.answer.take():
                if type(event) is Delta:
                    out.append((self.choice(event), event))
                else:
                    self._take(event)
            self._last = time.perf_counter()
            if self._first is None:
                self._first = self._last
        return out

    async def progress(self) -> list[tuple[int, Progress]]:
        out: list[tuple[int, Progress]] = []
        while not out and len(self._prompts.done) < len(self.prompts):
            for event in await self.answer.take():
                if type(event) is Progress:
                    out.append((self._prompts.numbers[event.request], event))
                else:
                    self._take(event)
        if not out:
            await self._record_answer()
        return out

    def _take(self, event: Event) -> None:
        """Raises: the error that ended a prompt."""
        number = self._prompts.numbers[event.request]
        if type(event) is Vectors:
            self.vectors[number] = event.data
        elif type(event) is Painted:
            picture = self.pictures.setdefault(number, bytearray())
            del picture[event.start :]
            picture += event.data
        elif type(event) is Done:
            self._prompts.done[number] = event
            self.cached_tokens += event.cached_tokens
            self.unshown += event.unshown
            if event.expanded:
                self._correct(number, event.expanded)
        elif type(event) is Failed:
            asks = self.plan.grammars[-1].where if event.param == GRAMMAR and self.plan.grammars else event.param
            raise from_wire(event.code, event.message, asks)

    def _correct(self, number: int, expansion: list[int]) -> None:
        """The engine's prompt is another one than was charged and looked up."""
        self.prompt_tokens += len(expansion) - len(self.prompts[number])
        if self._dispatcher.expansions is not None:
            job = self._prompts.job(number)
            self._dispatcher.expansions.correct_soon(corrections(job, self.plan.samples, expansion))

    def choice(self, delta: Delta) -> int:
        return self._prompts.numbers[delta.request] * self.plan.sampling[0].n + delta.index

    @property
    def done(self) -> dict[int, Done]:
        """The ends of prompts, by number."""
        return self._prompts.done

    @property
    def is_inspected(self) -> bool:
        """Whether each delta has to pass through `deltas`."""
        return self._inspection is not None

    @property
    def is_recorded(self) -> bool:
        """Whether all of its answer is there, and recorded."""
        return self._account.usage is not None

    @property
    def waits(self) -> bool:
        """Whether no worker has any of its prompts."""
        return not any(inflight.job.worker for inflight in self._prompts.in_flight)

    @property
    def placed_weights(self) -> str:
        return (self._prompts.in_flight[0].job.weights or "") if self._prompts.in_flight else ""

    def failed(self, exc: XylemError) -> None:
        """The error has been sent to the client already."""
        self._failure = exc.code

    def headers(self) -> dict[str, str]:
        """HTTP headers: the plan's, what is left of the key's limits, and where prompts were placed, if asked for."""
        headers = self.plan.headers | ({} if self._account.charge is None else self._account.charge.headers())
        return headers | ({"x-xylem-route": header(self._prompts.in_flight)} if self.plan.wishes.explain else {})

    def _watch(self, disconnect: Callable[[], Awaitable[None]]) -> None:
        self._watching = asyncio.create_task(self._await_disconnect(disconnect))

    async def _await_disconnect(self, disconnect: Callable[[], Awaitable[None]]) -> None:
        """Ends the answer when the client has disconnected, or can't be waited for."""
        try:
            await disconnect()
        except XylemError as exc:
            self._end(exc)
        else:
            self._end(Cancelled())

    def _end(self, exc: XylemError) -> None:
        """Nobody waits for the answer any more."""
        self.answer.end(exc)
        if self._inspection is not None:
            self._inspection.end(exc)
        self._dispatcher.abandon(list(self._prompts.numbers))

    async def _finish(self, exc: BaseException | None) -> None:
        outcome, account = self._failure or outcome_of(exc), self._account
        goes_on = self.outlives and isinstance(exc, asyncio.CancelledError | Cancelled)
        try:
            await self._dispatcher.cancel(list(self._prompts.numbers))
        finally:
            consumption = None if account.is_closed else self._used(outcome)
            try:
                if self.plan.samples and self._dispatcher.media is not None:
                    is_kept = self._begun is not None and self._client_left is None
                    cut = isinstance(exc, asyncio.CancelledError)
                    self._dispatcher.media.release(self.id, continued=is_kept and cut)
                await account.settle(consumption, cut=goes_on)
            finally:
                if (usage := account.usage) is None:
                    usage = self._recorded(outcome, consumption)
                    # A line's try that no worker had is no request.
                    counts = consumption is not None or self.batch_line is None
                    account.ended(usage, counts=counts, goes_on=goes_on)
                self._observe(outcome, usage.completion_tokens)
                if self._inspection is not None:
                    self._inspection.log(outcome)

    def _used(self, outcome: str) -> Used | None:
        picture_count = len(self._prompts.done) if self.plan.paintings else 0
        return used_by(self, outcome, picture_count, self._prompts.in_flight, self._prompts.outputs)

    async def _record_answer(self) -> None:
        if self._account.usage is None:
            consumption = self._used(OK)
            await self._account.answered(self._recorded(OK, consumption), consumption)

    def _recorded(self, outcome: str, usage: Used | None) -> UsageRecord:
        attempt = self._begun.attempt if self._begun else 0
        times = self._came, clock.now(), None if self._first is None else self._first - self._arrived
        return record_of(
            self,
            usage,
            self.client,
            outcome,
            times,
            prompts=self._prompts.in_flight,
            attempt=attempt,
            line=self.batch_line,
            x_request_id=self.x_request_id,
        )

    def _observe(self, outcome: str, count: int) -> None:
        """`count`: tokens of the answer."""
        dispatcher, now = self._dispatcher, clock.now()
        dispatcher.spent(self._prompts.in_flight, self._prompts.done.values())
        timelines = [Timeline.of(f, self.model.name, outcome, self._came, now) for f in self._prompts.in_flight]
        if dispatcher.recorder is not None:
            dispatcher.recorder.ended(self.model.name, self._came, self._prompts.in_flight)
        dispatcher.timelines.ended(self.id, self.client.key, timelines)
        if self._trace is not None:
            age_s = None if self._first is None else time.perf_counter() - self._first
            first = now - age_s if age_s is not None and self.completion_tokens else None
            end_trace(self._trace, self, self._prompts.in_flight, outcome, first_token=first)
        times = AnswerTimes(count, self._arrived, self._first, self._last, time.perf_counter())
        observe(self, outcome, times, timelines)
        if dispatcher.traffic is not None:
            ttft_s, itl_s = times.ttft_s, times.itl_s(self.choices)
            ends = self._prompts.done.values()
            dispatcher.traffic.ended(self.plan, outcome, self._prompts.in_flight, ends, ttft_s=ttft_s, itl_s=itl_s)
