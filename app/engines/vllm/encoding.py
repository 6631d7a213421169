"""Makes vectors of texts: each input is one vLLM request, and vLLM's scheduler batches them."""

from functools import partial

from vllm import PoolingParams
from vllm.inputs import tokens_input
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestOutputCollector

from app.engines.base import EncodeRequest
from app.engines.resume import part
from app.engines.vllm.requests import dp_rank
from app.errors import EngineFailed


async def vectors(engine: AsyncLLM, request: EncodeRequest) -> bytes:
    """The vectors of all inputs, concatenated: float32, little-endian. Raises: vLLM's errors and ours."""
    ids = [part(request.id, index) for index in range(len(request.inputs))]
    add_request = partial(
        engine.add_request,  # not `encode`, which takes no rank, and would need a task for each input
        params=PoolingParams(task=request.task, dimensions=request.dimensions),
        priority=request.priority,
        data_parallel_rank=dp_rank(engine, request),
        trace_headers=request.trace_headers,
    )
    try:
        outputs = [await add_request(id_, tokens_input(one)) for id_, one in zip(ids, request.inputs, strict=True)]
        return b"".join([await _vector(one) for one in outputs])
    except BaseException:  # cancelled, say: the others would go on
        await engine.abort(ids)
        raise


async def _vector(collector: RequestOutputCollector) -> bytes:
    out = collector.get_nowait() or await collector.get()
    raw: bytes = out.outputs.data.float().numpy().astype("<f4", copy=False).tobytes()
    if not raw:  # it was aborted
        raise EngineFailed("vLLM ended the request without a vector.")
    return raw
