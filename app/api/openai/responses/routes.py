"""POST /v1/responses; GET, input items, DELETE and cancel of kept ones."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain
from typing import Any, get_args

import orjson
from fastapi import APIRouter, Request
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope

from app import json_bytes
from app.api.http.answered import answered, answers
from app.api.http.disconnect import until_client_left
from app.api.http.long_response import LongResponse
from app.api.intake.calls import begin_or_join, give_up, new_call
from app.api.intake.client_limits import check_priority
from app.api.intake.request_body import collect
from app.api.openai.responses.earlier import history_of
from app.api.openai.responses.sse_response import Followed, ResponseStream
from app.api.resumable.event_log import EventLog
from app.api.resumable.replay import Replay
from app.api.resumable.store import Found
from app.api.state import ApiState, asking_of, state_of
from app.dispatch.generation_plan import GenerationPlan
from app.endpoint_registry import RESPONSE
from app.errors import Cancelled, RequestError, RequestNotFound, ServerStops
from app.ids import RequestId
from app.messages.kept import KeptRequest, ResponseContext
from app.openai.responses import answer_types as shown
from app.openai.responses.generation import ended, read_request, response_plan
from app.openai.responses.history import History, resolved
from app.openai.responses.input_items import ItemReference
from app.openai.responses.items import items_of, page
from app.openai.responses.live_source import LiveSource
from app.openai.responses.response_object import ResponseObject, begin_object
from app.openai.responses.schemas import ItemsQuery, ResponseRequest, Retrieval
from app.openai.responses.sse_events import ResponseEvents
from app.schemas.validation import parse, parse_off_loop

router = APIRouter(tags=["responses"])
PATH, KIND = RESPONSE.path, RESPONSE.row.kind
_RESPONSE = answered(shown.ResponseObject, *get_args(shown.AnyEvent))
_LONG = 512  # events: adding more of them at once would hold up the event loop


@router.post(PATH, openapi_extra=ResponseRequest.openapi(), responses=_RESPONSE)
async def create_response(request: Request) -> Response:
    """A response, streamed or whole, or begun in the background; kept for later unless `store` is false."""
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return await handle(state, raw, request.scope, request.receive)


async def handle(state: ApiState, raw: bytes, scope: Scope, receive: Receive) -> Response:
    """Raises: XylemError."""
    if any(name == b"last-event-id" for name, _ in scope["headers"]):
        raise RequestError("To resume a response, use GET with 'stream' and 'starting_after'.", param="Last-Event-ID")
    asking = asking_of(state, scope, raw)
    body = await read_request(asking, raw)
    check_priority(state, scope, body)
    history, history_json = await history_of(state, body, state.api_keys.owner(scope))
    longest = max(raw, history_json, key=len)
    plan, context = await response_plan(asking, body, history, longest)
    if not body.kept:
        return await _not_kept(state, body, plan, context, scope, receive=receive)
    context = replace(context, history=history_json, conversation=body.conversation_id or "")
    begin = partial(
        begin_or_join,
        state,
        KIND,
        body,
        scope,
        plan,
        background=bool(body.background),
        response=context,
        read=len(history.items),
    )
    # A client that repeats its request when the connection breaks wants the answer to continue meanwhile.
    goes_on = body.background or asking.goes_on

    def begun(reading: Replay) -> ResponseObject:
        model = reading.model.name  # for which an alias may not stand any more
        return _begun(state, reading.kept, body if model == body.model else body.renamed(model))

    if body.stream:

        async def followed() -> Followed:
            reading = await begin()
            on_leave = None if goes_on else partial(give_up, state, reading.id, scope)
            events = ResponseEvents(begun(reading))
            return Followed(reading.log, events, reading.headers, on_leave)

        return ResponseStream(followed, at_once=bool(body.background))
    reading = await begin()
    progress = begun(reading)
    if body.background:
        return await _json(await _read(state, progress), reading.headers())
    try:
        whole = await until_client_left(ended(reading.log, progress), receive)
    except (Cancelled, ServerStops):
        if not goes_on:
            await give_up(state, reading.id, scope)
        raise
    return await _json(whole, reading.headers())


def _begun(state: ApiState, kept_request: KeptRequest, body: ResponseRequest) -> ResponseObject:
    return begin_object(state.models, kept_request.id, kept_request.created, body, kept_request.response)


async def _not_kept(
    state: ApiState,
    body: ResponseRequest,
    plan: GenerationPlan,
    context: ResponseContext,
    scope: Scope,
    receive: Receive,
) -> Response:
    """A response for this connection only."""
    call = new_call(state, scope, receive, plan)
    progress = begin_object(state.models, call.id, call.created, body, context)
    if body.stream:
        return ResponseStream(
            _existing(Followed(LiveSource(call), ResponseEvents(progress), call.headers)), at_once=False
        )
    async with call:
        return await _json(await ended(LiveSource(call), progress), call.headers())


def _existing(stream: Followed) -> Callable[[], Awaitable[Followed]]:
    async def begin() -> Followed:
        return stream

    return begin


@router.get(f"{PATH}/{{response}}", openapi_extra=Retrieval.openapi(), responses=_RESPONSE)
async def show_response(request: Request, response: str) -> Response:
    """The response so far; or its events from `starting_after` to its end."""
    state = state_of(request)
    query = parse(Retrieval, query_of(request.query_params))
    query.check()
    async with state.reading():
        record, progress = await _find(state, request.scope, response)
        if not query.stream:
            return await _long(state, await _read(state, progress))
    if not record.kept.background:
        raise RequestError(
            "This response cannot be streamed because it was not created with background=true.", param="stream"
        )
    events = ResponseEvents(progress, -1 if query.starting_after is None else query.starting_after)
    log = EventLog(state.resumable_store, state.answer_owner, record.kept)
    return ResponseStream(_existing(Followed(log, events, held=state.answers)), at_once=True)


@router.get(f"{PATH}/{{response}}/input_items", openapi_extra=ItemsQuery.openapi(), responses=answers(shown.ItemsPage))
async def list_input_items(request: Request, response: str) -> Response:
    """The input of a kept response, item by item."""
    state, query = state_of(request), parse(ItemsQuery, query_of(request.query_params))
    async with state.reading():
        record, progress = await _find(state, request.scope, response, short=False)
        references = {}
        if any(isinstance(item, ItemReference) for item in progress.body.items):
            references = (await parse_off_loop(History, record.kept.response.history)).referenced

        def shown() -> bytes:
            return json_bytes.dumps(page(items_of(progress.id, resolved(progress.body.items, references)), query))

        return LongResponse(await state.off_loop(record.kept.body, shown), state.answers)


@router.post(f"{PATH}/{{response}}/cancel", responses=answers(shown.ResponseObject))
async def cancel_response(request: Request, response: str) -> Response:
    """Stops a response that runs in the background; one that has ended stays as it is."""
    state = state_of(request)
    async with state.reading():
        record, progress = await _find(state, request.scope, response)
        if not record.kept.background:
            raise RequestError("Cannot cancel a synchronous response.", param="response_id")
        await state.answer_owner.cancel(record.kept.id)
        return await _long(state, await _read(state, progress))


@router.delete(f"{PATH}/{{response}}")
async def delete_response(request: Request, response: str) -> shown.ResponseDeleted:
    """Stops it if it runs, and deletes it."""
    state = state_of(request)
    async with state.reading():
        record, _ = await _find(state, request.scope, response)
    await state.answer_owner.cancel(record.kept.id)
    await state.resumable_store.delete(record.kept.id)
    return {"id": record.kept.id, "object": "response", "deleted": True}


async def _find(state: ApiState, scope: Scope, response: str, *, short: bool = True) -> tuple[Found, ResponseObject]:
    """One of the client's; `short`: without what only its input shows. Raises: RequestNotFound, StoreDown."""
    record = await state.resumable_store.find(RequestId(response), state.api_keys.owner(scope), short=short)
    if record.kept.kind != KIND:
        raise RequestNotFound
    body = await parse_off_loop(ResponseRequest, record.kept.body)
    return record, _begun(state, record.kept, body)


async def _read(state: ApiState, progress: ResponseObject) -> ResponseObject:
    """Adds its log."""
    batches = await state.resumable_store.written(progress.id)

    def add() -> None:
        for event in chain.from_iterable(batches):
            progress.add(event)
        batches.clear()  # here, in the thread: freeing them takes as long

    if sum(map(len, batches)) > _LONG:
        await asyncio.to_thread(add)
    else:
        add()
    return progress


async def _written(progress: ResponseObject) -> bytes:
    def write() -> bytes:
        raw = json_bytes.dumps(progress.response())
        progress.forget()
        return raw

    return await asyncio.to_thread(write) if progress.is_long else write()


async def _json(progress: ResponseObject, headers: dict[str, str] | None = None) -> Response:
    return Response(await _written(progress), headers=headers, media_type="application/json")


async def _long(state: ApiState, progress: ResponseObject) -> Response:
    return LongResponse(await _written(progress), state.answers)


def query_of(params: QueryParams) -> bytes:
    """The query as JSON. There may be several `include`, with or without brackets."""
    fields: dict[str, Any] = dict(params)
    includes = [*params.getlist("include"), *params.getlist("include[]")]
    fields.pop("include[]", None)
    return orjson.dumps(fields | ({"include": includes} if includes else {}))
