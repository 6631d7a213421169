"""Chat completions: what a body means, and what its answer looks like."""

from typing import Any

from app.deltas import merge
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models import find_model
from app.dispatch.runtime import Deployment
from app.errors import RequestError
from app.messages import Delta
from app.openai.logprobs import chat_logprobs
from app.openai.schemas import ChatRequest, Conversation
from app.openai.sse_chunks import ChunkWriter
from app.openai.validation import parse_off_loop


async def understand(state: Deployment, raw: bytes, *, explain: bool = False) -> tuple[ChatRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await parse_off_loop(ChatRequest, raw)
    body.check()
    return body, await state.off_loop(raw, lambda: plan_of(state, "chatcmpl-", body, "messages", explain=explain))


def plan_of(state: Deployment, prefix: str, body: Conversation, param: str, *, explain: bool) -> GenerationPlan:
    """`prefix`: of its id. `param`: the field of the request that the messages are of. Raises: XylemError."""
    model = find_model(state.models, body.model)
    prompt = model.encode(model.render(body.messages), param, add_special_tokens=False)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit == 0:
        raise RequestError("'max_tokens' has to be at least 1.", param="max_tokens")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return GenerationPlan(
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


def chunks(call: GenerationBase, body: ChatRequest) -> ChunkWriter:
    return ChunkWriter("chat", call, logprobs=chat_logprobs, options=body.stream_options)


async def whole(call: GenerationBase, _body: ChatRequest) -> dict[str, Any]:
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
