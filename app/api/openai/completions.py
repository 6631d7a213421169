"""POST /v1/chat/completions and /v1/completions: one answer, or n, streamed or whole."""

from functools import partial

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.api.http import answer_schemas
from app.api.http.client_limits import check_priority
from app.api.http.headers import explain_wanted
from app.api.http.request_body import collect
from app.api.resumable.resume import answer_to, stream_of
from app.api.state import ApiState, state_of
from app.dispatch.generation_base import GenerationBase
from app.endpoint_registry import CHAT, TEXT, CompletionEndpoint, StreamWriter
from app.openai.schemas import ChatRequest, CompletionRequest

router = APIRouter()


@router.post(CHAT.path, openapi_extra=ChatRequest.openapi(), responses=answer_schemas.CHAT)
async def chat_completions(request: Request) -> Response:
    """One answer (or n) to a conversation, streamed or whole."""
    return await answer(CHAT, request)


@router.post(TEXT.path, openapi_extra=CompletionRequest.openapi(), responses=answer_schemas.TEXT)
async def completions(request: Request) -> Response:
    """The continuation of one prompt or several, streamed or whole."""
    return await answer(TEXT, request)


async def answer(endpoint: CompletionEndpoint, request: Request) -> Response:
    """Raises: XylemError."""
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return await handle(endpoint, state, raw, request.scope, request.receive)


async def handle(endpoint: CompletionEndpoint, state: ApiState, raw: bytes, scope: Scope, receive: Receive) -> Response:
    """Raises: XylemError."""
    body, plan = await endpoint.understand(state, raw, explain=explain_wanted(scope))
    check_priority(state, scope, body)
    begin = partial(answer_to, state, endpoint.kind, body, scope, receive, plan)
    if body.stream:

        def writer(call: GenerationBase) -> StreamWriter:
            return endpoint.writer(call, body)

        return stream_of(scope)(begin, writer)
    call = await begin()
    async with call:
        whole = await endpoint.writer(call, body).whole()
    return Response(await call.made(orjson.dumps, whole), headers=call.headers(), media_type="application/json")
