"""Beginning, resuming and joining kept answers."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace
from starlette.types import Receive, Scope

from app.api.http import x_request_id
from app.api.http.disconnect import client_left
from app.api.http.request_trace import place_of, trace_of
from app.api.resumable.adopted_plan import adopted_plan
from app.api.resumable.replay import Replay
from app.api.resumable.store import REFUSALS, Found, decoded
from app.api.state import ApiState
from app.dispatch.answering.generation import Generation
from app.dispatch.answering.prompts import Adopted
from app.dispatch.generation_plan import GenerationPlan
from app.errors import ModelNotFound, NoWorker, RequestError, Saturated, StoreDown
from app.ids import RequestId, new_request_id
from app.messages.events import Failed
from app.messages.kept import KeptRequest, ResponseContext
from app.openai.schemas import GenerationRequest
from app.schemas.validation import parse
from app.store import StoreFull, clock
from app.telemetry import logger
from app.tenants.charge import Charge, returned
from app.tenants.limits import begun_before
from app.tenants.records import NOBODY
from app.tracing.request_trace import RequestTrace

log = logger(__name__)

T = TypeVar("T")
Other = Callable[[], Awaitable[GenerationPlan]]

_LARGE = 16 * 2**10  # bytes of a body that is compared in a thread
_LONGEST_KEY = 255  # characters, as with other APIs
_RETRY_S = 0.2


async def placed_call(
    state: ApiState, scope: Scope, receive: Receive, plan: GenerationPlan, other: Other | None
) -> Generation:
    """An answer for this connection only. `other`: makes the plan for another model, if this one refuses.

    With `other` the answer is on a worker already. Raises: XylemError.
    """
    call = new_call(state, scope, receive, plan)
    if other is None:
        return call
    try:
        return await call.__aenter__()
    except (ModelNotFound, NoWorker, Saturated) as exc:
        log.info("another_model_answers", refused=plan.model.name, **x_request_id.names(scope), why=exc.code)
        return new_call(state, scope, receive, await other())


def new_call(state: ApiState, scope: Scope, receive: Receive, plan: GenerationPlan) -> Generation:
    """An answer for this connection only."""
    client = state.api_keys.client(scope)
    call = Generation(
        plan,
        dispatcher=state.dispatcher,
        client_left=partial(client_left, receive),
        charge=None if client is NOBODY else state.charge(scope),
        client=client,
        trace=None if state.tracer is None else trace_of(scope),
    )
    call.x_request_id = x_request_id.named_after(scope, call.id)
    return call


async def begin_or_join(
    state: ApiState,
    kind: str,
    body: GenerationRequest,
    scope: Scope,
    plan: GenerationPlan,
    *,
    background: bool = False,
    response: ResponseContext = ResponseContext(),  # noqa: B008 (frozen)
    read: int | None = None,
) -> Replay:
    """A new kept answer, or one to resume or join. `read`: as in `ResumableStore.put`. Raises: XylemError."""
    if plan.echo is not None:
        raise RequestError("An answer with 'echo' can't be resumed or joined.", param="echo")
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    last = headers.get(b"last-event-id", "")
    if last:
        request, skip = _position(last)
        return await _read(state, request, kind, body, scope, plan=plan, skip=skip)
    join = headers.get(b"idempotency-key", "")
    if len(join) > _LONGEST_KEY:
        raise RequestError(f"An Idempotency-Key has at most {_LONGEST_KEY} characters.", param="Idempotency-Key")
    kept_request = replace(new_kept(state, kind, body, scope, plan, background=background), response=response)
    charge = state.charge(scope, outlives=True)
    if charge is not None and not join:  # refused here, so that nothing is kept of it
        await charge.admit(kept_request.id, plan.used(), kept_request.deadline, plan.answer_tokens)
    async with returned(charge):
        first = await patiently(state, lambda: _put(state, kept_request, join, read))
    if first != kept_request.id:
        return await _read(state, first, kind, body, scope, plan=plan, skip=0)
    return start(state, kept_request, plan, charge, trace_of(scope))


async def patiently(state: ApiState, ask: Callable[[], Awaitable[T]]) -> T:
    """Tries again for `patience_s` while Redis is away, as placing does. Raises: StoreDown, at once if it is full."""
    end = time.monotonic() + state.settings.patience_s
    while True:
        try:
            return await ask()
        except StoreDown as exc:
            if isinstance(exc, StoreFull) or time.monotonic() > end or not state.resumable_store.connected_before:
                raise
        await asyncio.sleep(_RETRY_S)


async def _put(state: ApiState, kept_request: KeptRequest, join: str, read: int | None) -> RequestId:
    quota = await state.quotas.kept(state.api_keys.client_of(kept_request.tenant, kept_request.key))
    first = await state.resumable_store.put(kept_request, join=join, read=read, quota=quota)
    if first != kept_request.id and await _was_refused(state, first):  # a client that tries again is served
        first = await state.resumable_store.put(kept_request, join=join, instead_of=first, read=read, quota=quota)
    return first


def new_kept(
    state: ApiState, kind: str, body: GenerationRequest, scope: Scope, plan: GenerationPlan, *, background: bool = False
) -> KeptRequest:
    now = clock.now()
    client = state.api_keys.client(scope)
    id_ = new_request_id(plan.prefix, state.dispatcher.api)
    request_name = x_request_id.named_after(scope, id_)
    raw, chat = body.understood(), body.stored_chat()
    media = [sample.media for sample in plan.samples.values()]
    return KeptRequest(
        id_,
        kind,
        raw,
        created=now,
        deadline=now + plan.timeout_s,
        key=client.key,
        background=background,
        x_request_id=request_name,
        chat=chat,
        media=media,
        trace=place_of(scope),
        tenant=client.tenant.name,
    )


async def give_up(state: ApiState, request: RequestId, scope: Scope) -> None:
    """Stops an answer whose only reader has left."""
    try:
        await state.answer_owner.cancel(request)
    except StoreDown as exc:
        log.warning("not_cancelled", request=request, **x_request_id.names(scope), error=exc.message)


def start(
    state: ApiState, kept_request: KeptRequest, plan: GenerationPlan, charge: Charge | None, trace: RequestTrace | None
) -> Replay:
    """Begins the answer to a request that is in Redis. `trace`: the request's, which ends with the answer."""
    adoption = Adopted(kept_request.id, kept_request.created)
    if trace is not None:
        trace.ends_with_answer = True
    call = Generation(
        plan,
        dispatcher=state.dispatcher,
        charge=charge,
        adoption=adoption,
        client=state.api_keys.client_of(kept_request.tenant, kept_request.key),
        x_request_id=kept_request.x_request_id,
        trace=trace,
    )
    state.answer_owner.start(kept_request, call)
    limit_headers = {} if charge is None else charge.headers()
    return Replay(state.resumable_store, state.answer_owner, plan, Found(kept_request, 0), limit_headers=limit_headers)


async def _was_refused(state: ApiState, request: RequestId) -> bool:
    """Whether it failed before any output, because its model was full, missing or removed, or Redis was down."""
    batches = await decoded(await state.resumable_store.page(request))
    return len(batches) == 1 and isinstance(end := batches[0][-1], Failed) and end.code in REFUSALS


async def _read(
    state: ApiState,
    request: RequestId,
    kind: str,
    body: GenerationRequest,
    scope: Scope,
    plan: GenerationPlan,
    skip: int,
) -> Replay:
    record = await patiently(state, lambda: state.resumable_store.find(request, state.api_keys.owner(scope)))
    kept_request = record.kept

    def first_model() -> str | None:
        """The first request's model, if this request is the same. An alias may stand for another model by now."""
        first = parse(type(body), kept_request.body)
        again = body.renamed(first.model) if body.asked in state.aliases.table else body
        return first.model if again.understood() == first.understood() else None

    model = None
    if kept_request.kind == kind:
        model = await asyncio.to_thread(first_model) if len(kept_request.body) > _LARGE else first_model()
    if model is None:
        raise RequestError("The body is not that of the first request for this answer.", param="Idempotency-Key")
    if model != body.model:
        plan = await adopted_plan(state, kept_request, begun_before(state.api_keys.client(scope).within))
    x_request_id.named_after(scope, request)
    return Replay(state.resumable_store, state.answer_owner, plan, record, skip)


def _position(event: str) -> tuple[RequestId, int]:
    request, _, number = event.rpartition(":")
    if not request or not number.isdecimal() or len(number) > 9:
        raise RequestError(f"'{event[:100]}' is not the id of an event of this server.", param="Last-Event-ID")
    return RequestId(request), int(number)
