"""One request on a loaded vLLM: a whole answer, a prefill for another engine, or the decode after one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace
from vllm import SamplingParams
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.base import EncodeRequest, GenerateRequest, Prefilled, StepOutput
from app.engines.streams import merged
from app.engines.vllm import handoff as kv
from app.engines.vllm.convert import sampling_params, step_outputs
from app.engines.vllm.hearing import heard
from app.engines.vllm.media import checked, own_prompt, prompt_with_media
from app.engines.vllm.prompt_embeds import embedded
from app.engines.vllm.tiers.config import without_tiers
from app.engines.vllm.tiers.label import labelled
from app.errors import EngineFailed, HandoffFailed
from app.messages.handoff import KvHandle

# vLLM handles the result of its background handshake only in a step, and an idle engine makes none: these requests
# make it step, after so many seconds.
_NUDGES_S = (0.1, 0.4, 1.0)
_FORCED = 8  # tokens that are forced at most, one step each


async def answer(
    engine: AsyncLLM, lender: kv.VllmLender | None, request: GenerateRequest, lora: LoRARequest | None
) -> AsyncGenerator[StepOutput, None]:
    """All choices' steps. Raises: vLLM's errors and ours; HandoffFailed before the first step."""
    pull = None
    if request.handoff is not None:
        if lender is None:
            raise HandoffFailed("This pool's vLLM has no kv_transfer_config.")
        pull = lender.check(request.handoff)
    if pull is None or request.sampling.n == 1:
        async with aclosing(_steps(engine, request, lora, lender, pull)) as steps:
            async for step in steps:
                yield step
        return
    first, others = kv.split(request)
    async with aclosing(_steps(engine, first, lora, lender, pull)) as one:
        yield await anext(one)
        rest = _steps(engine, others, lora, from_index=1)
        async with aclosing(rest), aclosing(merged(one, rest)) as steps:
            async for step in steps:
                if step.index == 0 and step.finish == "abort":  # vLLM may not have had the others yet
                    await engine.abort(request.id)
                yield step


async def prefill(
    engine: AsyncLLM, lender: kv.VllmLender | None, request: GenerateRequest, lora: LoRARequest | None
) -> Prefilled:
    """Raises: vLLM's errors and ours."""
    if lender is None:
        raise EngineFailed("This pool's vLLM has no kv_transfer_config.")
    s = request.sampling
    # Such an answer ends with its first token: its KV won't be pulled.
    whole = s.n == 1 and (s.max_tokens == 1 or len(request.prompt) + 1 >= engine.model_config.max_model_len)
    first = kv.first_token(s)
    first_request = replace(request, sampling=first)
    output: StepOutput | None = None
    kv_params: dict[str, Any] | None = None
    outputs = run(engine, first_request, sampling_params(first, {} if whole else kv.keeping()), lora)
    async with aclosing(outputs):
        async for out in outputs:
            [output] = step_outputs(out, first_request, out.num_cached_tokens or 0)  # one output, of one token
            kv_params = out.kv_transfer_params
    if output is None:
        raise EngineFailed("vLLM ended the prefill without an output.")
    if whole or output.finish == "abort":
        return Prefilled(output, None, output.cached_tokens)
    if kv_params is None:
        raise EngineFailed("vLLM did not keep the prompt's KV.")
    handle = lender.lend(kv_params, len(request.prompt))
    if s.n > 1 or not lender.makes_first:
        return Prefilled(None, handle, output.cached_tokens)
    if output.finish == "stop":
        return Prefilled(output, handle, output.cached_tokens)
    return Prefilled(replace(output, finish=None, text=kv.held_back(output.text, s)), handle, output.cached_tokens)


async def discard(engine: AsyncLLM, loan: KvHandle) -> None:
    name, params = kv.discarding(loan)
    await engine.notify_kv_transfer_request_rejected(name, params)
    for nudge, pause in enumerate(_NUDGES_S):
        await asyncio.sleep(pause)
        await engine.notify_kv_transfer_request_rejected(f"{name}-{nudge}", {})


def can_force(lender: kv.VllmLender | None, request: GenerateRequest) -> bool:
    """Whether the answer can be forced to begin with the tokens so far: exact, but takes a step for each of them."""
    few = len(request.begun) == 1 and len(request.begun[0].tokens) <= _FORCED
    return lender is not None and (few or request.handoff is not None)


async def _steps(
    engine: AsyncLLM,
    request: GenerateRequest,
    lora: LoRARequest | None,
    lender: kv.VllmLender | None = None,
    pull: dict[str, Any] | None = None,
    from_index: int = 0,
) -> AsyncGenerator[StepOutput, None]:
    """Steps of the choices, numbered from `from_index` on, after the output so far."""
    output_so_far = request.begun[0] if request.begun else None  # `can_force`
    cached_tokens: int | None = None  # cached tokens of the first output: later choices find the prompt in the cache
    tokens = text_len = 0  # of an answer with one choice
    engine_prompt: list[int] = []
    outputs = run(engine, request, sampling_params(request.sampling, kv.pulling(pull, output_so_far)), lora)
    async with aclosing(outputs):
        async for out in outputs:
            if cached_tokens is None:
                if pull is not None and any(choice.finish_reason == "error" for choice in out.outputs):
                    raise HandoffFailed
                cached_tokens = out.num_cached_tokens or 0
                engine_prompt = own_prompt(out, request)
            for step in step_outputs(out, request, cached_tokens):
                output = replace(step, index=from_index + step.index, expanded=engine_prompt)
                engine_prompt = []
                if output_so_far is not None:
                    output = kv.behind(output, output_so_far, tokens, text_len)
                    tokens, text_len = tokens + len(step.tokens), text_len + len(step.text)
                    if not output.tokens and output.finish is None:
                        continue
                if pull is not None and lender is not None:
                    output, pull = replace(output, pulled=lender.pulled(len(request.prompt))), None
                yield output


def run(
    engine: AsyncLLM, request: GenerateRequest, params: SamplingParams, lora: LoRARequest | None
) -> AsyncGenerator[RequestOutput, None]:
    """vLLM's outputs of the request. Closing it aborts unfinished choices."""
    if request.tiers != "all":
        params.extra_args = without_tiers(params.extra_args, request.tiers)
    params.extra_args = labelled(params.extra_args, request.cache_salt, engine.vllm_config)
    if request.media and engine.model_config.is_encoder_decoder:
        return heard(engine, request, params)
    if request.media and request.media[0].media.kind == "embeds":
        return embedded(engine, request, params, lora, dp_rank(engine, request))
    prompt: Any = tokens_input(request.prompt, cache_salt=request.cache_salt)
    if request.media:
        prompt = prompt_with_media(engine, request)
    outputs: AsyncGenerator[RequestOutput, None] = engine.generate(
        prompt,
        params,
        request.id,
        lora_request=lora,
        priority=request.priority,
        data_parallel_rank=dp_rank(engine, request),
        trace_headers=request.trace_headers,
    )
    return checked(outputs, request) if request.media else outputs


def dp_rank(engine: AsyncLLM, request: GenerateRequest | EncodeRequest) -> int | None:
    """None where there is only one, which vLLM doesn't count."""
    return request.rank if engine.vllm_config.parallel_config.data_parallel_size > 1 else None
