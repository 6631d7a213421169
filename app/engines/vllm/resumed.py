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
from app.tokenizer import Tokenizer


def resumed(
    engine: AsyncLLM, tokenizer: Tokenizer, request: GenerateRequest, lora: LoRARequest | None
) -> AsyncGenerator[StepOutput, None]:
    """All steps of the unfinished choices, each as its own vLLM request."""
    open_ = [index for index, begun in enumerate(request.begun) if not begun.finished]
    return merged(*(_choice(engine, tokenizer, request, lora, index) for index in open_))


async def _choice(
    engine: AsyncLLM, tokenizer: Tokenizer, request: GenerateRequest, lora: LoRARequest | None, index: int
) -> AsyncGenerator[StepOutput, None]:
    begun, s = request.begun[index], request.sampling
    made = text_behind(tokenizer.raw, request.prompt, begun.tokens, special=s.special_tokens)
    scanner = StopScanner(s.stop, include=s.include_stop) if s.stop else None
    if scanner is not None:
        made, _ = scanner.push(made, check=False)  # no stop string is in there: it would have ended the answer
    behind, count = ContinuedText(made, begun.text_len), len(begun.tokens)
    prompt = [*request.prompt, *begun.tokens]
    written = [*request.written, *begun.tokens] if request.written else []
    asked = replace(request, id=part(request.id, index), sampling=rest(s, begun, index), prompt=prompt, written=written)
    extra = {GRAMMAR: count} if count and s.grammar is not None else None
    async with aclosing(run(engine, asked, sampling_params(asked.sampling, extra), lora)) as outputs:
        async for out in outputs:
            cached = min(out.num_cached_tokens or 0, len(request.prompt))
            for step in step_outputs(out, asked, cached):
                count += len(step.tokens)
                text, found, finish = step.text, step.stop, step.finish
                if scanner is not None:
                    text, stop = scanner.push(text, check=count > s.min_tokens)
                    if stop is not None:
                        found, finish = stop, "stop"
                    elif finish is not None:
                        text += scanner.flush()
                yield replace(step, index=index, text=behind(text), finish=finish, stop=found)
                if finish is not None:
                    return
