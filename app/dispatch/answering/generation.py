"""A request whose answer this process makes: sends its prompts, collects their events, observes the metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Self

import orjson
from msgspec import Struct

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.inspection import Inspection
from app.dispatch.attempt_log import AttemptLog
from app.dispatch.event_queue import EventQueue
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import ChoiceOutput, Groups, InFlight
from app.dispatch.media.corrections import corrections
from app.dispatch.media.media_store import Samples
from app.dispatch.observing.answer_trace import add_answer
from app.dispatch.observing.request_usage import record_of, used_by
from app.dispatch.observing.route_explanation import explained
from app.dispatch.observing.timeline import Timeline
from app.errors import OK, Cancelled, XylemError, from_wire, outcome_of
from app.ids import RequestId, new_request_id
from app.kv_store.salts import salted
from app.messages.events import GRAMMAR, Delta, Done, Event, Failed, Painted, Progress, Vectors
from app.messages.job import Job
from app.messages.trace import log_names
from app.routing.cost import EXPECTED_ANSWER
from app.store import clock
from app.tenants.charge import Charge
from app.tenants.cost import Used
from app.tenants.records import NOBODY, Client
from app.tracing.request_trace import RequestTrace
from app.usage.meters import TENANTS
from app.usage.record import LineTry, UsageRecord

_WATCH_AFTER_S = 0.2  # most requests have ended by then, and need no task that watches for a disconnect
_EXPLAINED = 8  # the first prompts of a request, in the header x-xylem-route


class Adopted(Struct, frozen=True):
    """A request that another API replica owned before, or whose id is given."""

    id: RequestId
    came: float  # when it arrived, seconds since the epoch
    attempt: int = 0  # its first one here
    out: dict[int, ChoiceOutput] = {}  # its choices so far


class Generation(GenerationBase):
    """An answer made here. An async context manager: entering sends the prompts, leaving cancels unfinished ones."""

    batch_line: LineTry | None = None  # that it answers
    outlives = False  # whether another process continues it if this one is cut off
    _entered = False
    _inspection: Inspection | None = None  # if its contents are inspected or logged, once it is entered
    _watching: asyncio.TimerHandle | asyncio.Task[None] | None = None
    _first: float | None = None
    _usage: UsageRecord | None = None
    _charge_due = True
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
        self._dispatcher, self._client_left, self._charge = dispatcher, client_left, charge
        self._begun = adoption
        self._in_flight: list[InFlight] = []
        # Of all prompts' choices; those of an adopted answer until they are sent on.
        self._outputs: list[ChoiceOutput] = [] if adoption is None else list(adoption.out.values())
        self.answer = EventQueue()
        self.done: dict[int, Done] = {}  # prompt number → its end
        self._arrived = time.perf_counter()
        self._last = self._arrived
        self._params = plan.params if plan.samples else {}
        self._numbers = {self.id: 0}
        if len(self.prompts) != 1:
            self._numbers = {RequestId(f"{self.id}-{i}"): i for i in range(len(self.prompts))}

    async def __aenter__(self) -> Self:
        """Sends the prompts, the first time. Raises: RateLimited, BudgetUsed, NoWorker, Saturated, StoreDown."""
        if self._entered:
            return self
        self._entered = True
        if self._client_left is not None:
            self._watching = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._watch, self._client_left)
        self._dispatcher.timelines.began(self.id, self.client.key, self._in_flight)
        if self._dispatcher.hook is not None or self.client.tenant.content_logged:
            self._inspection = self._inspected()
        try:
            if self._charge is not None:
                if self._begun is not None and self._begun.attempt:
                    await self._charge.adopt(self.id)
                else:
                    await self._charge.admit(self.id, self.plan.used(), self._deadline, self.plan.answer_tokens)
            # Of an adopted answer that has begun, its former owner has asked; of another one nobody may have.
            if self._inspection is not None and (self._begun is None or not self._begun.out):
                await self._inspection.prompt()
            traffic = self._dispatcher.traffic
            if traffic is not None and traffic.counts is not None and (self._begun is None or not self._begun.attempt):
                traffic.came(self.plan)
            await self._send()
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

    async def _send(self) -> None:
        self._outputs = []
        for request, number in self._numbers.items():
            inflight = self._inflight(request, number)
            self._outputs += inflight.out
            if self._begun is not None and all(out.finished for out in inflight.out):
                self.done[number] = Done(request, inflight.job.attempt)
            else:
                self._in_flight.append(inflight)
        if self._begun is not None and self._begun.attempt:
            await self._dispatcher.deaths.recall(self._in_flight)
        if not self._in_flight:  # only the end of the answer was lost with its owner
            return
        if self.plan.samples:
            await self._store_samples()
        if len(self._in_flight) == 1:
            await self._dispatcher.send(self._in_flight[0])
            return
        sends = [asyncio.create_task(self._dispatcher.send(inflight)) for inflight in self._in_flight]
        ended_sends, others = await asyncio.wait(sends, return_when=asyncio.FIRST_EXCEPTION)
        if others:  # one prompt was refused, so the whole request is
            self._dispatcher.abandon(list(self._numbers))
            ended_sends |= (await asyncio.wait(others))[0]
        failures = [error for error in (send.exception() for send in ended_sends) if error is not None]
        if failures:
            raise failures[0]

    async def _store_samples(self) -> None:
        """Raises: RequestError, Saturated, DeadlineOver, StoreDown."""
        data = {one.media.sha256: one.data for one in self.plan.samples.values() if one.data is not None}
        store = self._dispatcher.media
        assert store is not None
        if data:
            left_s = self._deadline - clock.now()
            samples = Samples(self.id, self.client, data, left_s, waits=self.plan.aside)
            await store.put(samples)
            for inflight in self._in_flight:
                inflight.samples = samples
        else:
            await store.adopt(self.id)

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
        while not out and len(self.done) < len(self.prompts):
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
        while not out and len(self.done) < len(self.prompts):
            for event in await self.answer.take():
                if type(event) is Progress:
                    out.append((self._numbers[event.request], event))
                else:
                    self._take(event)
        if not out:
            await self._record_answer()
        return out

    def _take(self, event: Event) -> None:
        """Raises: the error that ended a prompt."""
        number = self._numbers[event.request]
        if type(event) is Vectors:
            self.vectors[number] = event.data
        elif type(event) is Painted:
            picture = self.pictures.setdefault(number, bytearray())
            del picture[event.start :]
            picture += event.data
        elif type(event) is Done:
            self.done[number] = event
            self.cached_tokens += event.cached_tokens
            if event.expanded:
                self._correct(number, event.expanded)
        elif type(event) is Failed:
            asks = self.plan.grammars[-1].where if event.param == GRAMMAR and self.plan.grammars else event.param
            raise from_wire(event.code, event.message, asks)

    def _correct(self, number: int, expansion: list[int]) -> None:
        """The engine's prompt is another one than was charged and looked up."""
        self.prompt_tokens += len(expansion) - len(self.prompts[number])
        if self._dispatcher.expansions is not None:
            job = next(inflight.job for inflight in self._in_flight if self._numbers[inflight.job.request] == number)
            self._dispatcher.expansions.correct_soon(corrections(job, self.plan.samples, expansion))

    def choice(self, delta: Delta) -> int:
        return self._numbers[delta.request] * self.plan.sampling[0].n + delta.index

    @property
    def is_inspected(self) -> bool:
        """Whether each delta has to pass through `deltas`."""
        return self._inspection is not None

    @property
    def is_recorded(self) -> bool:
        """Whether all of its answer is there, and recorded."""
        return self._usage is not None

    @property
    def waits(self) -> bool:
        """Whether no worker has any of its prompts."""
        return not any(inflight.job.worker for inflight in self._in_flight)

    @property
    def placed_weights(self) -> str:
        return (self._in_flight[0].job.weights or "") if self._in_flight else ""

    def failed(self, exc: XylemError) -> None:
        """The error has been sent to the client already."""
        self._failure = exc.code

    def headers(self) -> dict[str, str]:
        """HTTP headers: the plan's, what is left of the key's limits, and where prompts were placed, if asked for."""
        headers = self.plan.headers | ({} if self._charge is None else self._charge.headers())
        if not self.plan.wishes.explain:
            return headers
        return headers | {
            "x-xylem-route": orjson.dumps(
                [
                    explained(f.job, f.attempt.decisions, candidates=i == 0)
                    for i, f in enumerate(self._in_flight[:_EXPLAINED])
                ]
            ).decode()
        }

    def _inflight(self, request: RequestId, number: int) -> InFlight:
        """The unplaced job, and the pools that it may be placed in."""
        sampling = self.plan.sampling[number]
        tokens = len(self.prompts[number])
        groups = self.model.groups(tokens + min(sampling.max_tokens, EXPECTED_ANSWER), self.plan.wishes)
        prefill_groups = self._prefill_groups(number) if self.model.prefill_pools else ()
        own_salt, tenants_salt = self.plan.cache_salt, self.client.tenant.salt
        trace = self._trace
        attempts = AttemptLog(trace.place) if trace is not None and trace.sampled else None
        job = Job(
            request,
            self._begun.attempt if self._begun else 0,
            self._dispatcher.api,
            prompt=self.prompts[number],
            sampling=sampling,
            deadline=self._deadline,
            priority=self.plan.priority,
            cache_salt=salted(tenants_salt, own_salt) if tenants_salt or own_salt else None,
            aside=self.plan.aside,
            whole=self.plan.whole,
            x_request_id=self.x_request_id,
            inputs=self.plan.inputs[number] if self.plan.inputs else None,
            session=self.plan.wishes.session,
            adapter=self.model.adapter,
            token_redis=self._dispatcher.token_redis,
            media=[*self.plan.media[number]] if self.plan.media else [],
            painting=self.plan.paintings[number] if self.plan.paintings else None,
            traceparent="" if trace is None else (attempts or trace.place).traceparent,
            turn="" if sampling.grammar is None else self.client.turn,
            written=self.plan.written[number] if self.plan.written else [],
        )
        out = None
        if self._begun is not None:
            out = [self._begun.out.get(number * sampling.n + i, ChoiceOutput([])) for i in range(sampling.n)]
        return InFlight(
            job,
            groups,
            self.answer,
            self.plan.wishes,
            prefill_groups,
            encode_pools=self.model.encode_pools,
            params=self._params,
            log=attempts,
            tenant=self.client.tenant,
            out=out,
        )

    def _prefill_groups(self, number: int) -> Groups:
        """The pools that may compute a prompt for another worker."""
        # Only the engine that computes a prompt has its logprobs, and the answer's worker has to send them.
        # Rows that a client computed are computed where the answer is made: decision 0050.
        media = self.plan.media[number] if self.plan.media else ()
        if self.plan.sampling[number].prompt_logprobs is not None or any(one.kind == "embeds" for one in media):
            return ()
        return self.model.prefill_groups(len(self.prompts[number]), self.plan.wishes)

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
        self._dispatcher.abandon(list(self._numbers))

    async def _finish(self, exc: BaseException | None) -> None:
        outcome = self._failure or outcome_of(exc)
        goes_on = self.outlives and isinstance(exc, asyncio.CancelledError | Cancelled)
        try:
            await self._dispatcher.cancel(list(self._numbers))
        finally:
            charge = self._charge if self._charge_due else None
            consumption = None if self._usage is not None and charge is None else self._used(outcome)
            try:
                if self.plan.samples and self._dispatcher.media is not None:
                    is_kept = self._begun is not None and self._client_left is None
                    cut = isinstance(exc, asyncio.CancelledError)
                    self._dispatcher.media.release(self.id, continued=is_kept and cut)
                if charge is not None:
                    await charge.settle(consumption, cut=goes_on)
            finally:
                usage = self._usage or self._record_end(outcome, consumption, goes_on=goes_on)
                self._observe(outcome, usage.completion_tokens)
                if self._inspection is not None:
                    self._inspection.log(outcome)

    def _used(self, outcome: str) -> Used | None:
        picture_count = len(self.done) if self.plan.paintings else 0
        return used_by(self, outcome, picture_count, self._in_flight, self._outputs)

    async def _record_answer(self) -> None:
        """All prompts are done: what they used is recorded before the client is told the end, and can count on it."""
        if self._usage is not None:
            return
        consumption = self._used(OK)
        usage = self._usage = self._recorded(OK, consumption, clock.now())
        TENANTS.ended(usage)
        if self._dispatcher.usage is None:
            return
        settlement = None
        if self._charge is not None:
            self._charge_due = False
            settlement = self._charge.settlement(consumption)
        if self._charge is None or settlement is None:
            await self._dispatcher.usage.store(usage)
        elif replies := await self._dispatcher.usage.store(usage, settlement.command):
            self._charge.settled(settlement, replies[0])

    def _recorded(self, outcome: str, usage: Used | None, end: float) -> UsageRecord:
        attempt = self._begun.attempt if self._begun else 0
        times = self._came, end, None if self._first is None else self._first - self._arrived
        return record_of(
            self,
            usage,
            self.client,
            outcome,
            times,
            prompts=self._in_flight,
            attempt=attempt,
            line=self.batch_line,
            x_request_id=self.x_request_id,
        )

    def _record_end(self, outcome: str, usage_so_far: Used | None, *, goes_on: bool) -> UsageRecord:
        """`goes_on`: another process continues the answer, and counts its tokens with these."""
        usage = self._usage = self._recorded(outcome, usage_so_far, clock.now())
        if usage_so_far is None and self.batch_line is not None:  # a line's try that no worker had is no request
            return usage
        if not goes_on:
            TENANTS.ended(usage)
        if self._dispatcher.usage is not None:
            self._dispatcher.usage.add(usage)
        return usage

    def _observe(self, outcome: str, count: int) -> None:
        """`count`: tokens of the answer."""
        meters, now = self.model.meters, clock.now()
        self._dispatcher.spent(self._in_flight, self.done.values())
        meters.ended(outcome)
        timelines = [Timeline.of(f, self.model.name, outcome, self._came, now) for f in self._in_flight]
        if self._dispatcher.recorder is not None:
            self._dispatcher.recorder.ended(self.model.name, self._came, self._in_flight)
        self._dispatcher.timelines.ended(self.id, self.client.key, timelines)
        for s in timelines:
            if s.timings:
                meters.stages(s.stages(), s.computed)
                if s.timings[-1].pulled is not None:
                    meters.pulled_bytes.inc(s.timings[-1].pulled.size)
        if spans := [timing.cost_s for s in timelines for timing in s.timings]:
            meters.cost.observe(sum(spans))
        if self._trace is not None:
            self._end_trace(self._trace, now, outcome)
        meters.duration.observe(time.perf_counter() - self._arrived)
        meters.prompt_tokens.observe(self.prompt_tokens)
        first_s = None if self._first is None else self._first - self._arrived
        steps, itl_s = count / self.choices - 1, 0.0
        if self._first is not None and first_s is not None:
            meters.output_tokens.observe(count)
            meters.cached_tokens.observe(self.cached_tokens)
            meters.hit_rate.observe(self.cached_tokens / (self.prompt_tokens or 1))
            meters.ttft.observe(first_s)
            if steps > 0:
                itl_s = (self._last - self._first) / steps
                meters.itl.observe(itl_s)
        if self._dispatcher.traffic is not None:
            self._dispatcher.traffic.ended(
                self.plan, outcome, self._in_flight, self.done.values(), ttft_s=first_s, itl_s=itl_s
            )

    def _end_trace(self, trace: RequestTrace, end: float, outcome: str) -> None:
        trace.error = "" if outcome == OK else outcome
        if trace.sampled:
            first = None
            if self._first is not None and self.completion_tokens:
                first = end - (time.perf_counter() - self._first)
            add_answer(trace, self.plan, self.id, self._in_flight, self.tokens(), first_token=first, error=trace.error)
        if trace.ends_with_answer:
            trace.end()
