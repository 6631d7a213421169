"""Texts to vectors: each input is a request of vLLM's own, and its scheduler batches them."""

import asyncio
from contextlib import aclosing

from vllm import PoolingParams
from vllm.inputs import tokens_input
from vllm.v1.engine.async_llm import AsyncLLM

from app.engines.base import EncodeRequest
from app.engines.resume import part
from app.errors import EngineFailed


async def vectors(engine: AsyncLLM, request: EncodeRequest) -> bytes:
    """Of all inputs, one behind the other. Raises: vLLM's errors and ours."""
    making = [asyncio.ensure_future(_vector(engine, request, index)) for index in range(len(request.inputs))]
    try:
        return b"".join(await asyncio.gather(*making))
    finally:
        for task in making:  # after an error the others would go on
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)


async def _vector(engine: AsyncLLM, request: EncodeRequest, index: int) -> bytes:
    outputs = engine.encode(
        tokens_input(request.inputs[index]),
        PoolingParams(task=request.task, dimensions=request.dimensions),
        part(request.id, index),
        priority=request.priority,
    )
    async with aclosing(outputs):
        async for out in outputs:
            raw: bytes = out.outputs.data.float().numpy().astype("<f4", copy=False).tobytes()
            return raw
    raise EngineFailed("vLLM ended the request without a vector.")
