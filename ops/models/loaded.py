"""An engine of a trial, with few blocks, and its answers."""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from app.engines.base import Configured, Engine, EngineInfo, GenerateRequest, StepOutput
from app.errors import EngineFailed, XylemError
from app.ids import RequestId
from app.messages.job import Sampling
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from ops.models.architectures import ARCHITECTURES
from ops.models.log import Log

_START_S = 300.0  # of a busy machine
NEAR = 0.05  # of a logprob, in bfloat16
_numbers = count()


@dataclass
class Model:
    """A tiny one, in a folder."""

    name: str
    folder: Path
    log: Log
    # Of which vLLM's cache has the first number that is enough for it: so few that some are evicted.
    blocks: tuple[int, ...] = (220, 440, 900)


class Loaded(NamedTuple):
    engine: Engine
    info: EngineInfo
    dtype: str  # of the model's weights, as torch names it
    tells_late: bool  # of an answer's blocks behind its last token


@asynccontextmanager
async def loaded(model: Model, **settings: Any) -> AsyncIterator[Loaded]:
    """vLLM with the pool's `settings`. Raises: XylemError, of vLLM's own reason."""
    import_module("ops.models.noise")  # only now: it takes vLLM's seconds
    own = {**ARCHITECTURES[model.name].args, **settings.pop("args", {})}
    args = {"load_format": "noise", "kv_cache_memory_bytes": 2**27} | own
    for blocks in model.blocks:
        try:
            engine_args = args | {"num_gpu_blocks_override": blocks}
            async with started(model, engine="vllm", args=engine_args, **settings) as it:
                model.blocks = (blocks,)
                yield it
                return
        except EngineFailed as exc:
            if blocks == model.blocks[-1] or "KV cache" not in exc.message:
                raise


@asynccontextmanager
async def started(model: Model, **settings: Any) -> AsyncIterator[Loaded]:
    """Raises: XylemError, of the engine's own reason."""
    model.log.begin()
    pool = Pool.model_validate({"model": "m", "path": model.folder, "max_running": 4, "max_model_len": 1024} | settings)
    engine = create_engine(pool)
    configuration = engine.configuration() if isinstance(engine, Configured) else {}
    fields = configuration.get("AsyncEngineArgs") or configuration.get("ServerArgs") or {}
    try:
        try:
            with _environment():
                async with asyncio.timeout(_START_S):
                    info = await engine.start()
        except XylemError as exc:
            raise EngineFailed(model.log.reason(exc.message)) from exc
        except TimeoutError:
            raise EngineFailed(f"did not start within {_START_S:.0f} s") from None
        yield Loaded(engine, info, str(fields.get("dtype", "")), tells_late=pool.engine == "sglang")
    finally:
        await engine.close()


@contextmanager
def _environment() -> Iterator[None]:
    """Leaves the next engine none of what this one sets, and vLLM for it."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def request(prompt: list[int], tokens: int = 8, **sampling: Any) -> GenerateRequest:
    settings = {"temperature": 0.0, "ignore_eos": True, "logprobs": 1} | sampling
    return GenerateRequest(RequestId(f"t{next(_numbers)}"), prompt, Sampling(max_tokens=tokens, **settings), 0)


async def answer(engine: Engine, asked: GenerateRequest) -> list[StepOutput]:
    return [step async for step in engine.generate(asked)]


def tokens_of(steps: list[StepOutput]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def difference(first: list[StepOutput], second: list[StepOutput], dtype: str) -> str:
    """Empty for equal tokens; in bfloat16, where sums in another order tip the balance, for a near first logprob."""
    one, two = tokens_of(first), tokens_of(second)
    if one == two:
        return ""
    if dtype == "float32":
        return f"other tokens: {one} and {two}"
    a, b = (steps[0].logprobs[0].logprob if steps and steps[0].logprobs else math.nan for steps in (first, second))
    return "" if abs(a - b) <= NEAR else f"another first logprob: {a:.3f} and {b:.3f}"
