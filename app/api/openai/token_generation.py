"""POST /inference/v1/generate, vLLM's: token ids in, token ids out."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from app import json_bytes
from app.api.http.answered import answered
from app.api.intake.calls import placed_call
from app.api.intake.client_limits import check_priority
from app.api.intake.request_body import collect
from app.api.openai.alias_turn import other_plan
from app.api.openai.sse_response import EventStream
from app.api.state import asking_of, state_of
from app.endpoint_registry import TEXT
from app.errors import RequestError
from app.openai.answer_types import Refusal
from app.openai.token_generation import Chunk, Generated, GenerateRequest, TokensWriter
from app.schemas.validation import parse_off_loop

router = APIRouter(tags=["completions"])
PATH = "/inference/v1/generate"


@router.post(
    PATH, openapi_extra=GenerateRequest.openapi(), responses=answered(Generated, Chunk, Refusal, ends="[DONE]")
)
async def generate_from_tokens(request: Request) -> Response:
    """The continuation of a prompt of token ids, as token ids; with `output_mode: text`, also as text."""
    state, scope = state_of(request), request.scope
    raw = await collect(scope, request.receive, state.settings.max_body)
    generate_request = await parse_off_loop(GenerateRequest, raw, state.longest_context)
    completion, asking = await state.off_loop(raw, generate_request.as_completion), asking_of(state, scope, raw)
    try:
        body, plan = await TEXT.understand(asking, completion)
    except RequestError as exc:
        raise generate_request.placed(exc) from exc
    check_priority(state, scope, body)
    other = other_plan(asking, TEXT, body, plan, completion)
    begin = partial(placed_call, state, scope, request.receive, plan, other)
    if generate_request.stream:
        return EventStream(begin, lambda call: TokensWriter(call, generate_request))
    async with await begin() as call:
        answer = await TokensWriter(call, generate_request).whole()
    return Response(await call.made(json_bytes.dumps, answer), headers=call.headers(), media_type="application/json")
