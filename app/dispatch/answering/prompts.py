"""The prompts of a request: their jobs, the pools that each may be placed in, and what is sent of them."""

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.attempt_log import AttemptLog
from app.dispatch.event_queue import EventQueue
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import ChoiceOutput, Groups, InFlight
from app.dispatch.media.media_store import Samples
from app.ids import ApiId, RequestId
from app.kv_store.salts import salted
from app.messages.events import Done
from app.messages.job import Job
from app.routing.cost import EXPECTED_ANSWER
from app.store import clock
from app.tenants.records import Client
from app.tracing.request_trace import RequestTrace


class Adopted(Struct, frozen=True):
    """A request that another API replica owned before, or whose id is given."""

    id: RequestId
    came: float  # when it arrived, seconds since the epoch
    attempt: int = 0  # its first one here
    out: dict[int, ChoiceOutput] = {}  # its choices so far


class PromptJobs(Struct, frozen=True):
    """A request that is sent, as its prompts have it in common."""

    plan: GenerationPlan
    client: Client
    deadline: float  # seconds since the epoch
    api: ApiId
    token_redis: int  # as in `Job`
    params: Mapping[str, str]  # as `unmet_need` has it
    trace: RequestTrace | None
    adoption: Adopted | None  # None: it is new

    def inflight(self, request: RequestId, number: int, answer: EventQueue, x_request_id: str) -> InFlight:
        """The unplaced job, and the pools that it may be placed in."""
        plan, model, trace, adoption = self.plan, self.plan.model, self.trace, self.adoption
        sampling = plan.sampling[number]
        length = len(plan.prompts[number]) + min(sampling.max_tokens, EXPECTED_ANSWER)
        attempts = AttemptLog(trace.place) if trace is not None and trace.sampled else None
        traceparent = "" if trace is None else (attempts or trace.place).traceparent
        out = None
        if adoption is not None:
            out = [adoption.out.get(number * sampling.n + i, ChoiceOutput([])) for i in range(sampling.n)]
        return InFlight(
            self._job(request, number, traceparent, x_request_id),
            model.groups(length, plan.wishes),
            answer,
            plan.wishes,
            self._prefill_groups(number) if model.prefill_pools else (),
            encode_pools=model.encode_pools,
            params=self.params,
            log=attempts,
            tenant=self.client.tenant,
            out=out,
        )

    def _job(self, request: RequestId, number: int, traceparent: str, x_request_id: str) -> Job:
        plan, client = self.plan, self.client
        sampling, tenants_salt = plan.sampling[number], client.tenant.salt
        return Job(
            request,
            self.adoption.attempt if self.adoption else 0,
            self.api,
            prompt=plan.prompts[number],
            sampling=sampling,
            deadline=self.deadline,
            priority=plan.priority,
            cache_salt=salted(tenants_salt, plan.cache_salt) if tenants_salt or plan.cache_salt else None,
            aside=plan.aside,
            whole=plan.whole,
            x_request_id=x_request_id,
            inputs=plan.inputs[number] if plan.inputs else None,
            session=plan.wishes.session,
            adapter=plan.model.adapter,
            token_redis=self.token_redis,
            media=[*plan.media[number]] if plan.media else [],
            painting=plan.paintings[number] if plan.paintings else None,
            traceparent=traceparent,
            turn="" if sampling.grammar is None else client.turn,
            written=plan.written[number] if plan.written else [],
        )

    def _prefill_groups(self, number: int) -> Groups:
        """The pools that may compute a prompt for another worker."""
        # Only the engine that computes a prompt has its logprobs, and the answer's worker has to send them.
        # Each step of a beam search computes a longer prompt.
        # Rows that a client computed are computed where the answer is made: decision 0050.
        media = self.plan.media[number] if self.plan.media else ()
        sampling = self.plan.sampling[number]
        if sampling.prompt_logprobs is not None or sampling.beams or any(one.kind == "embeds" for one in media):
            return ()
        return self.plan.model.prefill_groups(len(self.plan.prompts[number]), self.plan.wishes)


class Prompts:
    def __init__(
        self,
        request: RequestId,
        plan: GenerationPlan,
        dispatcher: Dispatcher,
        *,
        client: Client,
        deadline: float,
        trace: RequestTrace | None,
        adoption: Adopted | None,
    ) -> None:
        self._request, self._dispatcher, params = request, dispatcher, plan.params if plan.samples else {}
        self._jobs = PromptJobs(
            plan,
            client,
            deadline,
            dispatcher.api,
            dispatcher.token_redis,
            params=params,
            trace=trace,
            adoption=adoption,
        )
        self.in_flight: list[InFlight] = []
        self.done: dict[int, Done] = {}  # prompt number → its end
        # Of all prompts' choices; those of an adopted answer until they are sent on.
        self.outputs: list[ChoiceOutput] = [] if adoption is None else list(adoption.out.values())
        self.numbers = {request: 0}
        if len(plan.prompts) != 1:
            self.numbers = {RequestId(f"{request}-{i}"): i for i in range(len(plan.prompts))}

    async def send(self, answer: EventQueue, x_request_id: str) -> None:
        """Sends all that have not ended; `answer` gets their events. Raises: what `Dispatcher.send` raises."""
        self.outputs, jobs = [], self._jobs
        for request, number in self.numbers.items():
            inflight = jobs.inflight(request, number, answer, x_request_id)
            self.outputs += inflight.out
            if jobs.adoption is not None and all(out.finished for out in inflight.out):
                self.done[number] = Done(request, inflight.job.attempt)
            else:
                self.in_flight.append(inflight)
        if jobs.adoption is not None and jobs.adoption.attempt:
            await self._dispatcher.deaths.recall(self.in_flight)
        if not self.in_flight:  # only the end of the answer was lost with its owner
            return
        if jobs.plan.samples:
            await self._store_samples()
        if len(self.in_flight) == 1:
            await self._dispatcher.send(self.in_flight[0])
            return
        sends = [asyncio.create_task(self._dispatcher.send(inflight)) for inflight in self.in_flight]
        ended_sends, others = await asyncio.wait(sends, return_when=asyncio.FIRST_EXCEPTION)
        if others:  # one prompt was refused, so the whole request is
            self._dispatcher.abandon(list(self.numbers))
            ended_sends |= (await asyncio.wait(others))[0]
        failures = [error for error in (send.exception() for send in ended_sends) if error is not None]
        if failures:
            raise failures[0]

    async def _store_samples(self) -> None:
        """Raises: RequestError, Saturated, DeadlineOver, StoreDown, MediaLost."""
        jobs = self._jobs
        data = {one.media.sha256: one.data for one in jobs.plan.samples.values() if one.data is not None}
        store = self._dispatcher.media
        assert store is not None
        if data:
            left_s = jobs.deadline - clock.now()
            samples = Samples(self._request, jobs.client, data, left_s, waits=jobs.plan.aside)
            offer = await store.put(samples)
            for inflight in self.in_flight:
                inflight.samples = samples
                inflight.held_at(offer)
        else:
            await store.adopt(self._request)

    def job(self, number: int) -> Job:
        """The job of a prompt that was sent."""
        return next(inflight.job for inflight in self.in_flight if self.numbers[inflight.job.request] == number)
