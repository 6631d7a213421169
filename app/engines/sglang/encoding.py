"""Texts to vectors: each input is a request of SGLang's own, and its scheduler batches them."""

import asyncio
from array import array
from contextlib import aclosing

from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import EmbeddingReqInput

from app.engines.base import EncodeRequest
from app.engines.sglang.requests import new_id
from app.errors import EngineFailed


async def vectors(engine: Engine, request: EncodeRequest) -> bytes:
    """Vectors of all inputs, concatenated. Raises: SGLang's errors and ours."""
    making = [asyncio.ensure_future(_vector(engine, request, tokens)) for tokens in request.inputs]
    try:
        return b"".join(await asyncio.gather(*making))
    finally:
        for task in making:  # after an error the others would go on
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)


async def _vector(engine: Engine, request: EncodeRequest, tokens: list[int]) -> bytes:
    embedding_request = EmbeddingReqInput(
        input_ids=tokens,
        rid=new_id(),
        priority=request.priority,
        dimensions=request.dimensions,
        external_trace_header=request.trace_headers,
    )
    async with aclosing(engine.tokenizer_manager.generate_request(embedding_request, None)) as outputs:
        async for out in outputs:
            numbers = array("f", out["embedding"])
            return numbers.tobytes()
    raise EngineFailed("SGLang ended the request without a vector.")
