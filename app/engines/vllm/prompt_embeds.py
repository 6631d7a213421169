"""Prompts of which rows are given instead of tokens, as vLLM takes them, and what its KV events say of them.

vLLM gets a row for each position, and which positions are tokens: those of an answer that goes on here are. Its block
hashes have the SHA-256 of the block's rows (zeros at tokens, none behind the prompt), and so do its KV events; ours
have the embedding's hash and its offset. `OWN_KEYS` says which of ours is which of vLLM's.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import torch
from vllm import SamplingParams
from vllm.config import ModelConfig, VllmConfig
from vllm.inputs.engine import embeds_input
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.base import EventKey, GenerateRequest
from app.engines.prompt_rows import prompt_rows
from app.errors import RequestError

_MOST_KEYS = 2**16  # of some 200 bytes each
_NOTHING = hashlib.sha256(b"").digest()  # of a block behind the prompt
# Of all engines of this process: they are hashes of content.
OWN_KEYS: dict[bytes, EventKey | None] = {_NOTHING: None}


async def embedded(
    engine: AsyncLLM, request: GenerateRequest, params: SamplingParams, lora: LoRARequest | None, rank: int | None
) -> AsyncGenerator[RequestOutput, None]:
    """vLLM's outputs. Closing it aborts the request. Raises: RequestError, EngineFailed, and vLLM's errors."""
    config = engine.vllm_config
    rows, keys = await asyncio.to_thread(_rows_and_keys, config, request)
    _remember(keys)
    (one,) = request.media
    begin, end = one.media.offset, one.media.offset + one.media.length
    are_tokens = [not begin <= place < end for place in range(len(request.prompt))]
    prompt = embeds_input(rows, cache_salt=request.cache_salt, prompt_token_ids=request.prompt, is_token_ids=are_tokens)
    outputs = engine.generate(
        prompt,
        params,
        request.id,
        lora_request=lora,
        priority=request.priority,
        data_parallel_rank=rank,
        trace_headers=request.trace_headers,
    )
    async with aclosing(outputs):
        async for out in outputs:
            yield out


def _remember(keys: Mapping[bytes, EventKey | None]) -> None:
    for digest, key in keys.items():
        OWN_KEYS.pop(digest, None)  # the youngest are last
        OWN_KEYS[digest] = key
    while len(OWN_KEYS) > _MOST_KEYS:  # blocks that are announced later are left out of the index
        del OWN_KEYS[next(iter(OWN_KEYS))]
    OWN_KEYS[_NOTHING] = None


def _rows_and_keys(config: VllmConfig, request: GenerateRequest) -> tuple[torch.Tensor, dict[bytes, EventKey | None]]:
    """A row for each position, and the keys of the prompt's blocks. Raises: RequestError, EngineFailed."""
    rows = _rows(config.model_config, request)
    (one,) = request.media
    size, begin, end = config.cache_config.block_size, one.media.offset, one.media.offset + one.media.length
    keys = {}
    for start in range(0, len(rows), size):
        digest = hashlib.sha256(rows[start : start + size].view(torch.uint8).numpy().data).digest()
        keys[digest] = (one.media.sha256, begin - start) if begin < start + size and start < end else None
    return rows, keys


def _rows(config: ModelConfig, request: GenerateRequest) -> torch.Tensor:
    """A row for each position, in the model's dtype. Raises: RequestError, EngineFailed."""
    if not config.enable_prompt_embeds:
        raise RequestError("This model's engine takes a prompt embedding only if its pool says so.")
    width = config.get_inputs_embeds_size()
    media, values = prompt_rows(request, width, config.dtype)
    rows = torch.zeros(len(request.prompt), width, dtype=config.dtype)
    rows[media.offset : media.offset + media.length] = values
    return rows
