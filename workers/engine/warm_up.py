"""The first prompt of a worker that computes prompts, or listens: an engine compiles and allocates at first use."""

import time

from app.engines.base import Engine, EngineInfo, GenerateRequest, silence
from app.ids import RunId
from app.messages.job import Sampling
from app.telemetry import logger
from workers.engine.probe import TOKEN, compute

log = logger(__name__)

_BLOCKS = 4


async def warm_up(engine: Engine, info: EngineInfo, *, listens: bool = False) -> None:
    """Computes one prompt on each data-parallel rank. Raises: EngineFailed, with which the worker doesn't start.

    `listens`: it transcribes.
    """
    began = time.monotonic()
    tokens = [TOKEN] if listens else [TOKEN] * min(_BLOCKS * info.block_size, info.max_model_len - 1)
    media = [silence()] if listens else []
    for rank in range(info.ranks):
        run = RunId(f"warm-up-{rank}.0")
        await compute(engine, GenerateRequest(run, tokens, Sampling(max_tokens=1), rank=rank, media=media))
    log.info("warmed_up", seconds=round(time.monotonic() - began, 2))
