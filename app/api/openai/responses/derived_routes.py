"""A Responses request's prompt length, and the compaction of its conversation."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from app import json_bytes
from app.api.http.answered import answers
from app.api.intake.calls import new_call
from app.api.intake.client_limits import check_priority
from app.api.intake.request_body import collect
from app.api.openai.responses.earlier import history_of
from app.api.state import ApiState, asking_of, state_of
from app.dispatch.asking import Asking
from app.endpoint_registry import RESPONSE
from app.openai.responses.answer_types import Compacted, InputTokens
from app.openai.responses.compaction import CompactRequest, compacted
from app.openai.responses.generation import ended, response_plan
from app.openai.responses.live_source import LiveSource
from app.openai.responses.response_object import begin_object
from app.openai.responses.schemas import ResponseRequest
from app.schemas.validation import parse_off_loop

router = APIRouter(tags=["responses"])


@router.post(f"{RESPONSE.path}/input_tokens", openapi_extra=ResponseRequest.openapi())
async def count_input_tokens(request: Request) -> InputTokens:
    """The number of tokens in the prompt of such a request."""
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    asking = asking_of(state, request.scope)
    body = await asking.served(await parse_off_loop(ResponseRequest, raw), "responses")
    body.check()
    history, history_json = await history_of(state, body, state.api_keys.owner(request.scope))
    plan, _ = await response_plan(asking, body, history, max(raw, history_json, key=len))
    return {"object": "response.input_tokens", "input_tokens": len(plan.prompts[0])}


@router.post(f"{RESPONSE.path}/compact", openapi_extra=CompactRequest.openapi(), responses=answers(Compacted))
async def compact_response(request: Request) -> Response:
    """The user's messages, and an item with the model's summary of the rest."""
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    body = await parse_off_loop(CompactRequest, raw)
    check_priority(state, request.scope, body)
    asking = asking_of(state, request.scope)
    return await _compact(state, asking, await asking.served(body.as_response(), "responses"), raw, request)


async def _compact(state: ApiState, asking: Asking, body: ResponseRequest, raw: bytes, request: Request) -> Response:
    history, history_json = await history_of(state, body, state.api_keys.owner(request.scope))
    plan, context = await response_plan(asking, body, history, max(raw, history_json, key=len))
    call = new_call(state, request.scope, request.receive, plan)
    progress = begin_object(state.models, call.id, call.created, body, context)
    async with call:
        await ended(LiveSource(call), progress)
    items = history.of(body.items)[:-1]
    raw = await asyncio.to_thread(lambda: json_bytes.dumps(compacted(progress, items)))
    return Response(raw, headers=call.headers(), media_type="application/json")
