"""Tests that the ledger, the usage records and the metrics count the same tokens of an answer, however it ends."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from app.dispatch.answering.content_hook import ContentHook
from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.generation import Generation
from app.dispatch.answering.prompts import Adopted
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import ATTEMPTS, ChoiceOutput, InFlight
from app.dispatch.models.models import Model
from app.errors import Cancelled, ContentRefused, EngineFailed, HookDown, XylemError
from app.ids import ApiId, KeyId, RequestId, TenantId, new_request_id
from app.keys import Keys
from app.messages.events import Delta, Done, Failed
from app.messages.job import Sampling
from app.pools.schema import Pool
from app.store import Wire, clock
from app.telemetry import TENANT_TOKENS, Meters
from app.tenants.charge import Charge
from app.tenants.directory import Directory
from app.tenants.ledger import Ledger
from app.tenants.limit_table import Budget, TenantLimits
from app.tenants.records import Client, Tenant
from app.tokenizing.tokenizer import load_tokenizer
from app.usage.outbox import UsageOutbox
from app.usage.record import UsageRecord, decode_usage, latest
from tests.integration.conftest import POOL, register

KEYS = Keys("counts")
MODEL = Pool(model="m", engine="mock")
METERS = Meters("counts")
TOKENIZER = load_tokenizer(MODEL.model_dir)
PROMPT = [1, 2, 3]

End = Literal["answered", "left", "cancelled", "engine failed", "reader broke", "refused", "hook down"]
ERRORS: dict[str, XylemError] = {"refused": ContentRefused(), "hook down": HookDown(), "engine failed": EngineFailed()}
TOKENS = st.tuples(st.just("tokens"), st.integers(0, 1), st.integers(0, 1), st.integers(1, 3))
FAULT = st.tuples(st.sampled_from(["worker died", "returned", "read", "replica killed", "replica stopped"]))
STEPS = st.lists(TOKENS | FAULT, max_size=8)
ENDS = st.sampled_from(get_args(End))


class Hook:
    """A content hook that lets no answer through."""

    parts = frozenset({"answer"})

    def __init__(self, error: XylemError) -> None:
        self._error, self.is_asked = error, False

    async def check(self, *_: object) -> None:
        self.is_asked = True
        raise self._error


@dataclass
class Replica:
    """An API replica as far as counts go: what it makes of events."""

    api: ApiId
    wire: Wire
    plan: GenerationPlan
    client: Client
    hook: Hook | None = None
    call: Generation = field(init=False)

    def __post_init__(self) -> None:
        pools = {POOL: MODEL}
        self.outbox, hook = UsageOutbox(self.wire, KEYS), cast(ContentHook | None, self.hook)
        fleet = FleetReader(self.wire, KEYS, pools, 100)
        self.dispatcher = Dispatcher(self.wire, KEYS, self.api, fleet, pools, usage=self.outbox, hook=hook)
        self.ledger = Ledger(self.wire, KEYS, self.api, Directory(self.wire, KEYS))

    async def begin(self, begun: Adopted) -> None:
        charge = Charge.of(self.ledger, self.client, outlives=True)
        call = Generation(self.plan, dispatcher=self.dispatcher, charge=charge, adoption=begun, client=self.client)
        self.call = call
        call.outlives = True
        await call.__aenter__()

    async def prompts(self) -> dict[int, InFlight]:
        """The prompts that have not ended, by number, once each is on a worker."""
        requests = {number: self.dispatcher.in_flight.get(name) for name, number in self.call._prompts.numbers.items()}
        open_requests = {number: inflight for number, inflight in requests.items() if inflight is not None}
        while not all(inflight.job.worker for inflight in open_requests.values()):
            await asyncio.sleep(0.002)
        return open_requests

    async def end(self, how: End | Literal["stopped"]) -> None:
        """Ends the call as the reader of the answer meets the end."""
        error: BaseException | None = None
        if how in ("answered", *ERRORS):
            for inflight in (await self.prompts()).values():
                job = inflight.job
                failure = Failed(job.request, job.attempt, EngineFailed.code, "")
                self.dispatcher.deliver(failure if how == "engine failed" else Done(job.request, job.attempt))
            try:
                while await self.call.deltas():
                    pass
            except XylemError as exc:
                error = exc
        else:
            self.call.outlives = how == "stopped"
            errors: dict[str, BaseException] = {"left": Cancelled(), "reader broke": ValueError()}
            error = errors.get(how) or asyncio.CancelledError()
        await self.call.__aexit__(None, error, None)
        await self.outbox.close()


def plan(prompts: int, n: int) -> GenerationPlan:
    model = Model("m", (POOL,), (), None, TOKENIZER, 100, METERS)
    return GenerationPlan("chatcmpl-", model, [PROMPT] * prompts, [Sampling(9, n=n)] * prompts, timeout_s=60)


def metered(tenant: TenantId) -> tuple[float, float]:
    prompt, completion = (TENANT_TOKENS.labels(tenant, kind)._value.get() for kind in ("prompt", "completion"))
    return prompt, completion


async def recorded(redis: "Redis") -> list[UsageRecord]:
    entries = await redis.xrange(KEYS.usage())
    return latest(record for _, fields in entries for record in decode_usage(fields[b"b"]))


@given(prompts=st.integers(1, 2), n=st.integers(1, 2), steps=STEPS, how=ENDS)
@example(prompts=1, n=2, steps=[("tokens", 0, 0, 3), ("tokens", 0, 1, 2)], how="left")
@example(prompts=1, n=1, steps=[], how="left")
@example(prompts=1, n=1, steps=[("tokens", 0, 0, 3), ("worker died",), ("tokens", 0, 0, 1)], how="cancelled")
@example(prompts=1, n=1, steps=[("tokens", 0, 0, 3), ("replica stopped",), ("tokens", 0, 0, 1)], how="answered")
@example(prompts=1, n=1, steps=[("tokens", 0, 0, 3), ("replica killed",)], how="engine failed")
@example(prompts=1, n=2, steps=[("tokens", 0, 0, 3), ("tokens", 0, 1, 1)], how="refused")
@example(prompts=2, n=1, steps=[("tokens", 0, 0, 3), ("worker died",), ("tokens", 1, 0, 1)], how="hook down")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_ledger_the_usage_record_and_the_metrics_have_one_number_of_tokens(
    redis: "Redis", wire: Wire, prompts: int, n: int, steps: Sequence[tuple[Any, ...]], how: End
) -> None:
    """The number is what engines have answered, whether the client got it or not.

    The owners of a kept answer count it together.
    """
    await redis.flushall()
    for name in ("w1", "w2"):
        await register(redis, KEYS, name)
    tenant = TenantId("counted")
    client = Client(Tenant(tenant), KeyId("k"), "k", TenantLimits(budget=Budget(1e9)))
    before, answer_tokens, epoch = metered(tenant), 0, 0
    out: dict[int, ChoiceOutput] = {}  # the kept log
    id_, came = new_request_id("chatcmpl-", ApiId("aaaaaaaa")), clock.now()
    hook = Hook(ERRORS[how]) if how in ("refused", "hook down") else None
    replica = Replica(ApiId("aaaaaaaa"), wire, plan(prompts, n), client, hook)
    await replica.begin(Adopted(id_, came))
    has_died = False
    for what, *which in steps:
        if what == "tokens":
            prompt, choice, count = which
            if inflight := (await replica.prompts()).get(prompt % prompts):
                delta = Delta(inflight.job.request, inflight.job.attempt, "x" * count, [7] * count, choice % n)
                replica.dispatcher.deliver(delta)
                out.setdefault(prompt % prompts * n + choice % n, ChoiceOutput([])).add(delta)
                answer_tokens += count
        elif what == "read":
            if replica.call.answer.pending() and hook is None:  # which has all of the answer held
                for _, delta in await replica.call.deltas():
                    replica.call.count(delta)
        elif what in ("worker died", "returned"):
            for inflight in (await replica.prompts()).values():
                replica.dispatcher.lost(inflight, died=what == "worker died" and not has_died)
            has_died = has_died or what == "worker died"  # after more deaths, prompts are placed one by one
        else:
            await replica.prompts()
            if what == "replica stopped":
                await replica.end("stopped")
            epoch += 1
            replica = Replica(ApiId(f"b{epoch:07}"), wire, replica.plan, client, hook)
            await replica.begin(Adopted(id_, came, epoch * ATTEMPTS, dict(out)))
            out = {i: ChoiceOutput(list(one.tokens), one.text_len) for i, one in out.items()}
    await replica.prompts()
    await replica.end(how)
    (record,) = await recorded(redis)
    spent_tokens = float(await redis.hget(KEYS.budget("k"), "spent") or 0)
    prompt_tokens = prompts * len(PROMPT)
    assert (record.prompt_tokens, record.completion_tokens) == (prompt_tokens, answer_tokens)
    if how == "engine failed" or (hook is not None and hook.is_asked):  # of an empty answer it isn't
        assert record.outcome == ERRORS[how].code
    assert spent_tokens == prompt_tokens + answer_tokens
    after = metered(tenant)
    assert (after[0] - before[0], after[1] - before[1]) == (prompt_tokens, answer_tokens)
    assert not await redis.exists(KEYS.charged(RequestId(id_))), "what is charged is settled"
