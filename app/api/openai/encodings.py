"""POST /v1/embeddings, /v2/embed, /v1/score, /v1/rerank and /v1/classify: whole answers, made of vectors."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.api.http.answered import answers
from app.api.intake.calls import placed_call
from app.api.intake.client_limits import check_priority
from app.api.intake.request_body import collect
from app.api.openai.alias_turn import other_plan
from app.api.state import ApiState, asking_of, state_of
from app.endpoint_registry import CLASSIFY, COHERE_EMBEDDINGS, EMBEDDINGS, RERANK, SCORE, Endpoint
from app.endpoints import LARGE
from app.openai.vector_answers import Classes, CohereEmbeddings, Embeddings, Reranked, Scores

router = APIRouter(tags=["embeddings"])
_DEPTH = 3  # of an answer's lists and objects down to an item, whose own are short
Route = Callable[[Request], Awaitable[Response]]


def _post(endpoint: Endpoint, answer: Any) -> Callable[[Route], Route]:
    def register(route: Route) -> Route:
        for path in (endpoint.path, *endpoint.row.same):
            name = route.__name__ if path == endpoint.path else f"{route.__name__}_at{path.replace('/', '_')}"
            router.post(path, name=name, openapi_extra=endpoint.schema.openapi(), responses=answers(answer))(route)
        return route

    return register


@_post(EMBEDDINGS, Embeddings)
async def create_embeddings(request: Request) -> Response:
    """A vector for each text."""
    return await _handle(EMBEDDINGS, request)


@_post(COHERE_EMBEDDINGS, CohereEmbeddings)
async def create_cohere_embeddings(request: Request) -> Response:
    """A vector for each text, in each form that is asked for: Cohere's API, which vLLM has too."""
    return await _handle(COHERE_EMBEDDINGS, request)


@_post(SCORE, Scores)
async def score_texts(request: Request) -> Response:
    """Scores how similar texts are: the cosine of their embeddings."""
    return await _handle(SCORE, request)


@_post(RERANK, Reranked)
async def rerank_documents(request: Request) -> Response:
    """Documents ordered by how well they fit a query."""
    return await _handle(RERANK, request)


@_post(CLASSIFY, Classes)
async def classify_texts(request: Request) -> Response:
    """The class of each text, with the probabilities of all classes."""
    return await _handle(CLASSIFY, request)


async def _handle(endpoint: Endpoint, request: Request) -> Response:
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return await handle(endpoint, state, raw, request.scope, request.receive)


async def handle(endpoint: Endpoint, state: ApiState, raw: bytes, scope: Scope, receive: Receive) -> Response:
    """Raises: XylemError. Nothing is kept: a repeated request gets the same answer."""
    asking = asking_of(state, scope)
    body, plan = await endpoint.understand(asking, raw)
    check_priority(state, scope, body)
    other = other_plan(asking, endpoint, body, plan, raw)
    call = await placed_call(state, scope, receive, plan, other)
    async with call:
        answer = await endpoint.writer(call, body).whole()
    long = len(plan.prompts) > 1 or len(raw) > LARGE  # an answer may repeat its texts
    content = await asyncio.to_thread(dumped, answer) if long else orjson.dumps(answer)
    return Response(content, headers=call.headers(), media_type="application/json")


def dumped(answer: Mapping[str, Any]) -> memoryview:
    """JSON, written one item at a time, so that other threads run between: an answer may have a hundred megabytes."""
    buffer = bytearray()
    for piece in _pieces(answer, _DEPTH):
        buffer += piece
    return memoryview(buffer)


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    """`depth`: how many levels of lists and objects are written in pieces."""
    if depth and isinstance(value, dict):
        for index, (name, inner) in enumerate(value.items()):
            yield b"%b%b:" % (b"," if index else b"{", orjson.dumps(name))
            yield from _pieces(inner, depth - 1)
        yield b"}" if value else b"{}"
    elif depth and isinstance(value, list):
        for index, inner in enumerate(value):
            yield b"," if index else b"["
            yield from _pieces(inner, depth - 1)
        yield b"]" if value else b"[]"
    else:
        yield orjson.dumps(value)
