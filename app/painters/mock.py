"""The mock engine of pools of task `image`: pictures of one colour, which prompt, seed and step decide."""

import asyncio
import hashlib
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from importlib.metadata import version
from math import inf
from typing import Any

from app.engines.base import EngineInfo, EngineStats, KvEventSource
from app.engines.mock.args import MockArgs
from app.engines.pool_args import parsed_args
from app.errors import EngineFailed
from app.messages.job import Painting
from app.painters.base import Painted, PaintRequest, PaintStep
from app.painters.pictures import encoded
from app.painters.previews import preview_steps
from app.pools.schema import Pool


class MockPainter:
    """Implements `app.painters.base.Painter`. A step of all pictures together takes `step_ms`."""

    def __init__(self, pool: Pool, _address: str = "127.0.0.1") -> None:
        """Raises: SettingsError (unknown or bad arguments)."""
        self._pool, self._args = pool, parsed_args(MockArgs, pool.args)
        self._seats = asyncio.Semaphore(pool.max_running)
        self._painting = self._waiting = self._steps = 0
        self._failure: EngineFailed | None = EngineFailed("The engine has not been started.")

    def configuration(self) -> Mapping[str, Any]:
        return self._args.model_dump()

    async def start(self) -> EngineInfo:
        await asyncio.sleep(self._args.load_s / self._args.speedup)
        if self._args.fail_to_load is not None:
            raise EngineFailed(self._args.fail_to_load)
        self._failure = None
        return EngineInfo(
            self._pool.block_size, 1, self._pool.max_running, 0, media=("image",), version=version("xylem-serve")
        )

    async def paint(self, request: PaintRequest) -> AsyncGenerator[PaintStep | Painted, None]:
        self._check()
        self._waiting += 1
        try:
            await self._seats.acquire()
        finally:
            self._waiting -= 1
        self._painting += 1
        try:
            async for output in self._paint(request.painting, begun_from(request)):
                yield output
        finally:
            self._painting -= 1
            self._seats.release()

    async def _paint(self, painting: Painting, start: str) -> AsyncGenerator[PaintStep | Painted, None]:
        args, steps_with_preview = self._args, preview_steps(painting)
        if args.dies_on is not None and args.dies_on in painting.prompt:
            os.kill(os.getpid(), signal.SIGKILL)
        if args.hangs_on is not None and args.hangs_on in painting.prompt:
            await asyncio.sleep(inf)
        for step in range(1, painting.steps + 1):
            await asyncio.sleep(args.step_ms / 1e3 / args.speedup)
            self._check()
            self._steps += 1
            yield PaintStep(step, painting.steps, picture(painting, step, start) if step in steps_with_preview else b"")
        yield Painted(picture(painting, painting.steps, start))

    def stats(self) -> EngineStats:
        return EngineStats(self._painting, self._waiting, paint_steps=self._steps)

    def kv_events(self) -> Mapping[int, KvEventSource]:
        return {}

    async def close(self) -> None:
        self._failure = EngineFailed("The engine is closed.")

    def _check(self) -> None:
        if self._failure is not None:
            raise EngineFailed(self._failure.message)


def begun_from(request: PaintRequest) -> str:
    """The SHA-256 of the pictures to be edited, and of the mask."""
    mask = () if request.mask is None else ("mask", request.mask.media.sha256)
    return " ".join([*(one.media.sha256 for one in request.sources), *mask])


def picture(painting: Painting, step: int, start: str = "") -> bytes:
    """A file of one colour; a video is none that could be played. `start`: as `begun_from` says."""
    text = f"{painting.prompt}\n{painting.negative}\n{painting.guidance}\n{painting.seed}\n{step}\n{start}"
    digest = hashlib.sha256(text.encode()).digest()
    if painting.format == "mp4":
        return digest * painting.frames
    pixels = digest[:3] * (painting.width * painting.height)
    return encoded(painting.width, painting.height, pixels, painting.format, painting.quality)
