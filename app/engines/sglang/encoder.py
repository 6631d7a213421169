"""SGLang's encoder of pictures, for other workers: the model without its language part, in a process of its own."""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from typing import Any

import structlog

from app.engines.base import (
    Embedding,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    KvEventSource,
    PictureRequest,
    StepOutput,
)
from app.engines.pool_args import set_environment
from app.engines.sglang.args import engine_args
from app.engines.sglang.encoder_process import encode, load, loaded
from app.errors import EngineDead, EngineFailed, RequestError, SettingsError
from app.ids import RunId
from app.pools.schema import Pool

log = structlog.get_logger(__name__)


class SglangEncoder:
    """Implements `app.engines.base.Engine`, which generates nothing, and `PictureEncoder`.

    A pool's `args` are as `SglangEngine`'s.
    """

    def __init__(self, pool: Pool, address: str = "127.0.0.1") -> None:
        """Raises: SettingsError (bad arguments)."""
        self._pool, self._args = pool, engine_args(pool, address)
        self._process: ProcessPoolExecutor | None = None  # set by start
        self._running = 0

    def configuration(self) -> dict[str, Any]:
        return {"environment": self._args.environment, "ServerArgs": self._args.fields}

    async def start(self) -> EngineInfo:
        set_environment(self._args.environment)
        began = time.monotonic()
        method = multiprocessing.get_start_method(allow_none=True)  # never "fork": this process has threads
        context = multiprocessing.get_context("forkserver" if method == "forkserver" else "spawn")
        self._process = ProcessPoolExecutor(1, context, load, (self._args.fields, self._pool))
        try:
            refusal = await self._asked(loaded)
        except EngineDead:
            refusal = "its process died"
        if refusal:
            await self.close()
            raise SettingsError(f"SGLang's encoder did not start: {refusal}")
        log.info("sglang loaded", action="engine_loaded", seconds=round(time.monotonic() - began, 1))
        pool = self._pool
        return EngineInfo(
            pool.block_size,
            1,
            pool.max_running,
            pool.context_len,
            media=("image",),
            computes=False,
            version=version("sglang"),
        )

    async def encode_picture(self, request: PictureRequest) -> Embedding:
        self._running += 1
        try:
            embedding: Embedding = await self._asked(encode, request.picture)
            return embedding
        except ValueError as exc:
            raise RequestError(f"the model can't take it: {exc}") from exc
        finally:
            self._running -= 1

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[StepOutput, None]:
        raise EngineFailed(f"This engine encodes pictures only ({request.id}).")
        yield

    async def abort(self, request: RunId) -> None:
        """Nothing is generated."""

    def stats(self) -> EngineStats:
        return EngineStats(running=self._running)

    def kv_events(self) -> Mapping[int, KvEventSource]:
        return {}

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.shutdown, cancel_futures=True)

    async def _asked(self, function: Any, *arguments: Any) -> Any:
        """Raises: EngineDead, EngineFailed; ValueError, as SGLang refuses a picture."""
        if self._process is None:
            raise EngineFailed("The engine is not running.")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._process, function, *arguments)
        except BrokenProcessPool as exc:
            raise EngineDead("SGLang's process died.") from exc
        except (ValueError, asyncio.CancelledError):
            raise
        except Exception as exc:
            raise EngineFailed(f"SGLang's encoder failed: {exc!r}") from exc
