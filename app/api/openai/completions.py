"""POST /v1/chat/completions and /v1/completions: one answer, or n, streamed or whole."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from app import json_bytes
from app.api.http.answered import answered
from app.api.http.disconnect import until_client_left
from app.api.intake.calls import begin_or_join, give_up, placed_call
from app.api.intake.client_limits import check_priority
from app.api.intake.request_body import collect
from app.api.openai import pipelines
from app.api.openai.alias_turn import other_plan
from app.api.openai.kept_stream import KeptStream
from app.api.openai.sse_response import EventStream
from app.api.resumable.replay import Replay
from app.api.state import ApiState, asking_of, state_of
from app.dispatch.answering.generation import Generation
from app.dispatch.models.pipeline_named import PipelineNamed
from app.endpoint_registry import CHAT, TEXT, CompletionEndpoint, StreamWriter
from app.errors import Cancelled, ServerStops
from app.ids import RequestId
from app.openai.answer_types import ChatCompletion, ChatCompletionChunk, Refusal, TextCompletion, TextCompletionChunk
from app.openai.schemas import ChatRequest, CompletionRequest

router = APIRouter()
_CHAT = answered(ChatCompletion, ChatCompletionChunk, Refusal, ends="[DONE]")
_TEXT = answered(TextCompletion, TextCompletionChunk, Refusal, ends="[DONE]")


@router.post(CHAT.path, openapi_extra=ChatRequest.openapi(), responses=_CHAT, tags=["chats"])
async def create_chat_completion(request: Request) -> Response:
    """One answer (or n) to a conversation, streamed or whole."""
    return await answer(CHAT, request)


@router.post(TEXT.path, openapi_extra=CompletionRequest.openapi(), responses=_TEXT, tags=["completions"])
async def create_completion(request: Request) -> Response:
    """The continuation of one prompt or several, streamed or whole."""
    return await answer(TEXT, request)


async def answer(endpoint: CompletionEndpoint, request: Request) -> Response:
    """Raises: XylemError."""
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return await handle(endpoint, state, raw, request.scope, request.receive)


async def handle(endpoint: CompletionEndpoint, state: ApiState, raw: bytes, scope: Scope, receive: Receive) -> Response:
    """Raises: XylemError."""
    asking = asking_of(state, scope, raw)
    try:
        body, plan = await endpoint.understand(asking, raw)
    except PipelineNamed as exc:
        if endpoint is not CHAT or exc.paints:
            raise
        return await pipelines.chat(state, asking, exc, raw, scope, receive=receive)
    if body.priority is not None:
        check_priority(state, scope, body)
    keeps = asking.goes_on or body.kept
    begin: Callable[[], Awaitable[Generation | Replay]]
    if keeps:
        begin = partial(begin_or_join, state, endpoint.row.kind, body, scope, plan)
    else:
        other = other_plan(asking, endpoint, body, plan, raw) if state.aliases.table else None
        begin = partial(placed_call, state, scope, receive, plan, other)
    writer = partial(endpoint.writer, body=body)

    async def gives_up(request: RequestId) -> None:
        await give_up(state, request, scope)

    on_leave = None if asking.goes_on else gives_up
    if body.stream:
        return KeptStream(begin, writer, on_leave) if keeps else EventStream(begin, writer)
    call = await begin()
    if isinstance(call, Replay):
        answer = await _read(call, writer(call), receive, on_leave)
    else:
        async with call:
            answer = await writer(call).whole()
    return Response(await call.made(json_bytes.dumps, answer), headers=call.headers(), media_type="application/json")


async def _read(
    call: Replay, writer: StreamWriter, receive: Receive, on_leave: Callable[[RequestId], Awaitable[None]] | None
) -> Mapping[str, Any]:
    """A whole kept answer. Raises: the error that ended it."""
    try:
        return await until_client_left(writer.whole(), receive)
    except (Cancelled, ServerStops):
        if on_leave is not None:
            await on_leave(call.id)
        raise
