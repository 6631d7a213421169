"""Asks a hybrid model's engine alone, without Xylem's other processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random

from app.engines.base import Engine, GenerateRequest
from app.errors import XylemError
from app.ids import RequestId
from app.messages.job import Sampling
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine

_numbers = count()


@asynccontextmanager
async def started(folder: Path, blocks: int, most_tokens: int, **args: int | None) -> AsyncIterator[Engine]:
    """An engine with `blocks` in its cache. `most_tokens`: of a prompt with its answer. Raises: XylemError."""
    engine_args = {"load_format": "dummy", "kv_cache_memory_bytes": 2**28, "num_gpu_blocks_override": blocks, **args}
    engine = create_engine(
        Pool(model="m", engine="vllm", path=folder, max_running=4, max_model_len=most_tokens, args=engine_args)
    )
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


async def answer(engine: Engine, prompt: list[int], tokens: int) -> tuple[list[int], int]:
    """Its tokens, and how many of the prompt's were cached. Raises: XylemError."""
    sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    request = GenerateRequest(RequestId(f"k{next(_numbers)}"), [*prompt], sampling, 0)
    steps = [step async for step in engine.generate(request)]
    if not steps:
        raise XylemError("no answer")
    return [token for step in steps for token in step.tokens], steps[0].cached_tokens


def words(random: Random, length: int) -> list[int]:
    """Tokens that nothing else begins with."""
    return [random.randrange(10, 40_000) for _ in range(length)]
