"""The first prompt of a prefill worker, before it is ready: an engine compiles and allocates at first use."""

import time

from app.engines.base import Engine, EngineInfo, GenerateRequest, WarmsUp
from app.ids import RunId
from app.messages import Sampling
from app.telemetry import logger

log = logger(__name__)

_TOKEN = 1  # any: every vocabulary has it
_BLOCKS = 4


async def warm_up(engine: Engine, info: EngineInfo) -> None:
    """Computes one prompt on each data-parallel rank. Raises: EngineFailed, with which the worker doesn't start."""
    began = time.monotonic()
    if isinstance(engine, WarmsUp):
        await engine.warm_up()
    else:
        tokens = [_TOKEN] * min(_BLOCKS * info.block_size, info.max_model_len - 1)
        for rank in range(info.ranks):
            run = RunId(f"warm-up-{rank}.0")
            async for _ in engine.generate(GenerateRequest(run, tokens, Sampling(max_tokens=1), rank=rank)):
                pass
    log.info("warmed_up", seconds=round(time.monotonic() - began, 2))
