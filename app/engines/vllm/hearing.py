"""Requests of models with an encoder for sound and a decoder for text: Whisper."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.base import GenerateRequest
from app.engines.heard import heard_samples
from app.engines.vllm.times import TIMES

_RATE = 16_000  # samples a second
_TICK = 320  # samples between two tokens of time
_SCRAP = 8_000  # samples at the end, half a second, of which a model need not write anything


async def heard(
    engine: AsyncLLM, request: GenerateRequest, params: SamplingParams
) -> AsyncGenerator[RequestOutput, None]:
    """vLLM's outputs. Closing it aborts the request."""
    (sound,) = request.media
    samples = np.frombuffer(sound.data, "<f4")
    prompt = {
        "encoder_prompt": {
            "prompt": "",  # vLLM itself fills in what stands for the sound
            "multi_modal_data": {"audio": (samples, _RATE)},
            "multi_modal_uuids": {"audio": [sound.media.sha256]},
        },
        "decoder_prompt": {"prompt_token_ids": request.prompt},
    }
    if times := _times(engine, request.prompt, samples):
        params.extra_args = {**(params.extra_args or {}), TIMES: times}
    # In vLLM's own thread: the spectrum takes 30 ms, in which no other answer would go on.
    (engine_prompt,) = await engine.renderer.render_cmpl_async([prompt])
    outputs = engine.generate(
        engine_prompt,
        params,
        request.id,
        priority=request.priority,
        data_parallel_rank=_rank(engine, request),
        trace_headers=request.trace_headers,
    )
    async with aclosing(outputs):
        async for out in outputs:
            yield out


def _times(engine: AsyncLLM, prompt: list[int], samples: np.ndarray) -> list[int] | None:
    """The tokens that `times.py` needs; None: no times are asked for."""
    without, end = engine.get_tokenizer().convert_tokens_to_ids(["<|notimestamps|>", "<|endoftext|>"])
    if max(prompt) <= without:
        return None
    first = without + 1
    return [first, end, first + (heard_samples(samples) - _SCRAP) // _TICK]


def _rank(engine: AsyncLLM, request: GenerateRequest) -> int | None:
    """The data-parallel rank, as of `requests.dp_rank`, which needs this module."""
    return request.rank if engine.vllm_config.parallel_config.data_parallel_size > 1 else None
