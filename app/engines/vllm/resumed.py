"""Answers of which much is out already: those tokens become part of the prompt, so that one step computes them all.

What vLLM counts from an answer's beginning is made up for here. Two things it can't be told: a presence penalty counts
twice for tokens that came before and come again, and a seed begins a stream of its own.
"""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.base import GenerateRequest, StepOutput
from app.engines.resume import Behind, text_behind
from app.engines.stops import StopScanner
from app.engines.vllm.convert import sampling_params, step_outputs
from app.engines.vllm.requests import merged, run
from app.engines.vllm_plugin import GRAMMAR
from app.ids import RunId
from app.messages import PartialOutput, Sampling
from app.tokenizer import Tokenizer

_STRIDE = 0x9E3779B9  # between the seeds of an answer that is taken over after other numbers of tokens


def resumed(
    engine: AsyncLLM, tokenizer: Tokenizer, request: GenerateRequest, lora: LoRARequest | None
) -> AsyncGenerator[StepOutput, None]:
    """All steps of the choices that are not finished, each a request of its own."""
    open_ = [index for index, begun in enumerate(request.begun) if not begun.finished]
    return merged(*(_choice(engine, tokenizer, request, lora, index) for index in open_))


def part(request: RunId, index: int) -> RunId:
    """The id of a choice's own request."""
    return RunId(f"{request}-{index}")


def rest(s: Sampling, begun: PartialOutput, index: int) -> Sampling:
    """What is asked for behind `begun`; stop strings are looked for here, since one may lie across the border."""
    out = len(begun.tokens)
    bias = dict(s.logit_bias or {})
    if s.presence_penalty or s.frequency_penalty:
        for token, count in Counter(begun.tokens).items():
            bias[token] = bias.get(token, 0.0) - s.presence_penalty - s.frequency_penalty * count
    return replace(
        s,
        n=1,
        max_tokens=s.max_tokens - out,
        min_tokens=max(0, s.min_tokens - out),
        seed=None if s.seed is None else (s.seed + index + out * _STRIDE) % 2**63,  # vLLM gives choice i seed + i
        stop=(),
        prompt_logprobs=None if out else s.prompt_logprobs,
        logit_bias=bias or None,
    )


async def _choice(
    engine: AsyncLLM, tokenizer: Tokenizer, request: GenerateRequest, lora: LoRARequest | None, index: int
) -> AsyncGenerator[StepOutput, None]:
    begun, s = request.begun[index], request.sampling
    made = text_behind(tokenizer.raw, request.prompt, begun.tokens, special=s.special_tokens)
    scanner = StopScanner(s.stop, include=s.include_stop) if s.stop else None
    if scanner is not None:
        made, _ = scanner.push(made, check=False)  # had one been there, it would have been the end
    behind, count = Behind(made, begun.text_len), len(begun.tokens)
    prompt = [*request.prompt, *begun.tokens]
    asked = replace(request, id=part(request.id, index), sampling=rest(s, begun, index), prompt=prompt)
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
