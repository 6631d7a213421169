"""Text completions: what a body means, and what its answer looks like."""

from typing import Any, cast

from app.deltas import merge
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models import Model, find_model
from app.dispatch.runtime import Deployment
from app.errors import RequestError
from app.messages import Delta
from app.openai.echo import Echo
from app.openai.logprobs import TextLogprobs
from app.openai.schemas import MOST_BIASES, CompletionRequest
from app.openai.sse_chunks import ChunkWriter
from app.openai.validation import parse_off_loop

_DEFAULT_MAX_TOKENS = 16  # OpenAI's
_MAX_PROMPTS = 128
_MOST_ECHOED = 24_576  # logprobs of prompts' tokens in one answer: they come as one message, which is decoded at once


async def understand(
    state: Deployment, raw: bytes, *, explain: bool = False
) -> tuple[CompletionRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await parse_off_loop(CompletionRequest, raw, state.longest_context)
    body.check()
    return body, await state.off_loop(raw, lambda: _plan(state, body, explain=explain))


def _plan(state: Deployment, body: CompletionRequest, *, explain: bool) -> GenerationPlan:
    model = find_model(state.models, body.model)
    limit = _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    prompts = _prompts(body, model, limit)
    if len(body.logit_bias or ()) * len(prompts) > MOST_BIASES:
        raise RequestError(f"At most {MOST_BIASES} biases over all prompts.", param="logit_bias")
    if limit == 0 and not body.echo:
        raise RequestError("'max_tokens' has to be at least 1 without 'echo'.", param="max_tokens")
    prompt_logprobs = body.logprobs if body.echo else None
    if prompt_logprobs is not None and sum(map(len, prompts)) * (prompt_logprobs + 1) * (body.n or 1) > _MOST_ECHOED:
        raise RequestError(
            f"'logprobs' with 'echo': at most {_MOST_ECHOED} of all tokens of all prompts, in all choices together.",
            param="logprobs",
        )
    return GenerationPlan(
        "cmpl-",
        model,
        prompts,
        [
            # Engines generate at least one token; Echo drops it when none was asked for.
            body.sampling(max(1, limit), logprobs=body.logprobs, prompt_logprobs=prompt_logprobs)
            for _ in prompts
        ],
        timeout_s=body.timeout or state.settings.request_timeout_s,
        priority=body.urgency,
        cache_salt=body.cache_salt,
        wishes=body.wishes(explain=explain),
        aside=body.aside,
        tier=body.tier,
        edit=Echo(model.tokenizer, prompts, body.n or 1, only=limit == 0) if body.echo else None,
    )


def chunks(call: GenerationBase, body: CompletionRequest) -> ChunkWriter:
    return ChunkWriter("text", call, logprobs=TextLogprobs(), options=body.stream_options)


async def whole(call: GenerationBase, _body: CompletionRequest) -> dict[str, Any]:
    """Raises: what ended it."""
    choices = await call.made(_choices, await call.whole())
    return call.envelope("text_completion") | {"choices": choices, "usage": call.usage()}


def _choices(deltas: list[tuple[int, Delta]]) -> list[dict[str, Any]]:
    logprobs = TextLogprobs()
    return [
        {
            "index": i,
            "text": d.text,
            "logprobs": logprobs(i, d),
            "finish_reason": d.finish,
            "stop_reason": d.stop,
        }
        for i, d in sorted(merge(deltas))
    ]


def _prompts(body: CompletionRequest, model: Model, limit: int) -> list[list[int]]:
    """The prompt in each of its four shapes as lists of token ids. Raises: RequestError."""
    raw = body.prompt
    copies = (body.n or 1) if body.echo else 1  # of each prompt, in the answer
    many = [raw] if isinstance(raw, str) or (raw and isinstance(raw[0], int)) else raw
    if not many:
        raise RequestError("The prompt is empty.", param="prompt")
    if len(many) > _MAX_PROMPTS:
        raise RequestError(f"At most {_MAX_PROMPTS} prompts in one request.", param="prompt")
    prompts, left = [], model.most_tokens
    for given in many:
        prompt = model.encode(given, "prompt") if isinstance(given, str) else cast(list[int], given)
        model.room(prompt, limit, "prompt")
        left -= len(prompt) * copies
        if left < 0:
            said = "All prompts together, echoed with each choice," if copies > 1 else "All prompts together"
            raise RequestError(f"{said} have more than {model.most_tokens} tokens.", param="prompt")
        model.check_tokens(prompt)
        prompts.append(prompt)
    return prompts
