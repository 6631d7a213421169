"""Continues answers with much output: its tokens become part of the prompt, so that one step computes them all.

Compensates for all that vLLM counts from an answer's beginning, with two exceptions: a presence penalty counts twice
for tokens that come again, and a seed gives new random numbers.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.base import GenerateRequest, StepOutput
from app.engines.resume import ContinuedText, part, rest, text_behind
from app.engines.stops import StopScanner
from app.engines.streams import merged
from app.engines.vllm.convert import sampling_params, step_outputs
from app.engines.vllm.requests import run
from app.engines.vllm_plugin import GRAMMAR
from app.tokenizing.tokenizer import Tokenizer


def resumed(
    engine: AsyncLLM, tokenizer: Tokenizer, request: GenerateRequest, lora: LoRARequest | None
) -> AsyncGenerator[StepOutput, None]:
    """All steps of the unfinished choices, each as its own vLLM request."""
    open_ = [index for index, output in enumerate(request.begun) if not output.finished]
    return merged(*(_choice(engine, tokenizer, request, lora, index) for index in open_))


async def _choice(
    engine: AsyncLLM, tokenizer: Tokenizer, request: GenerateRequest, lora: LoRARequest | None, index: int
) -> AsyncGenerator[StepOutput, None]:
    output_so_far, s = request.begun[index], request.sampling
    prefix = text_behind(tokenizer.raw, request.prompt, output_so_far.tokens, special=s.special_tokens)
    scanner = StopScanner(s.stop, include=s.include_stop) if s.stop else None
    if scanner is not None:
        prefix, _ = scanner.push(prefix, check=False)  # no stop string is in there: it would have ended the answer
    behind, count = ContinuedText(prefix, output_so_far.text_len), len(output_so_far.tokens)
    prompt = [*request.prompt, *output_so_far.tokens]
    written_prompt = [*request.written, *output_so_far.tokens] if request.written else []
    continuation = replace(
        request,
        id=part(request.id, index),
        sampling=rest(s, output_so_far, index),
        prompt=prompt,
        written=written_prompt,
    )
    extra = {GRAMMAR: count} if count and s.grammar is not None else None
    async with aclosing(run(engine, continuation, sampling_params(continuation.sampling, extra), lora)) as outputs:
        async for out in outputs:
            cached_tokens = min(out.num_cached_tokens or 0, len(request.prompt))
            for step in step_outputs(out, continuation, cached_tokens):
                count += len(step.tokens)
                text, stop_reason, finish = step.text, step.stop, step.finish
                if scanner is not None:
                    text, stop = scanner.push(text, check=count > s.min_tokens)
                    if stop is not None:
                        stop_reason, finish = stop, "stop"
                    elif finish is not None:
                        text += scanner.flush()
                yield replace(step, index=index, text=behind(text), finish=finish, stop=stop_reason)
                if finish is not None:
                    return
