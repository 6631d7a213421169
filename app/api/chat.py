"""POST /v1/chat/completions."""

from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.api import shapes
from app.api.body import collect
from app.api.bounds import check_priority
from app.api.call import Call
from app.api.chunks import Chunks
from app.api.explain import explain_wanted
from app.api.kept.join import answer_to, stream_of
from app.api.kept.reading import Reading
from app.api.logprobs import chat_logprobs
from app.api.models import find_model
from app.api.parsing import parse_off_loop
from app.api.plan import Plan
from app.api.schemas import ChatRequest, Conversation
from app.api.serving import Known
from app.api.state import ApiState, state_of
from app.deltas import merge
from app.errors import RequestError
from app.messages import Delta

router = APIRouter()
PATH = "/v1/chat/completions"


@router.post(PATH, openapi_extra=ChatRequest.openapi(), responses=shapes.CHAT)
async def chat_completions(request: Request) -> Response:
    """One answer (or n) to a conversation, streamed or whole."""
    state = state_of(request)
    raw = await collect(request.scope, request.receive, state.settings.max_body)
    return await handle(state, raw, request.scope, request.receive)


async def understand(state: Known, raw: bytes, *, explain: bool = False) -> tuple[ChatRequest, Plan]:
    """Raises: XylemError."""
    body = await parse_off_loop(ChatRequest, raw)
    body.check()
    return body, await state.off_loop(raw, lambda: plan_of(state, "chatcmpl-", body, "messages", explain=explain))


def plan_of(state: Known, prefix: str, body: Conversation, param: str, *, explain: bool) -> Plan:
    """`prefix`: of its id. `param`: the field of the request that the messages are of. Raises: XylemError."""
    model = find_model(state.models, body.model)
    prompt = model.encode(model.render(body.messages), param, add_special_tokens=False)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit == 0:
        raise RequestError("'max_tokens' has to be at least 1.", param="max_tokens")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return Plan(
        prefix,
        model,
        [prompt],
        [body.sampling(model.room(prompt, limit, param), logprobs=logprobs)],
        timeout_s=body.timeout or state.settings.request_timeout_s,
        priority=body.urgency,
        cache_salt=body.cache_salt,
        wishes=body.wishes(explain=explain),
        aside=body.aside,
        tier=body.tier,
    )


async def handle(state: ApiState, raw: bytes, scope: Scope, receive: Receive) -> Response:
    """Raises: XylemError."""
    body, plan = await understand(state, raw, explain=explain_wanted(scope))
    check_priority(state, scope, body)
    begin = partial(answer_to, state, "chat", body, scope, receive, plan)
    if body.stream:
        chunks = partial(Chunks, "chat", logprobs=chat_logprobs, options=body.stream_options)
        return stream_of(scope)(begin, chunks, roles=True)
    call = await begin()
    async with call:
        answer = await whole(call, body)
    return Response(await call.made(orjson.dumps, answer), headers=call.headers(), media_type="application/json")


async def whole(call: Call | Reading, _body: ChatRequest) -> dict[str, Any]:
    """Raises: what ended it."""
    choices = await call.made(_choices, await call.whole())
    return call.envelope("chat.completion") | {"choices": choices, "usage": call.usage()}


def _choices(deltas: list[tuple[int, Delta]]) -> list[dict[str, Any]]:
    return [_choice(i, d) for i, d in sorted(merge(deltas))]


def _choice(index: int, d: Delta) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": d.text, "refusal": None},
        "logprobs": chat_logprobs(index, d),
        "finish_reason": d.finish,
        "stop_reason": d.stop,
    }
