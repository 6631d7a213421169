"""The base of painters whose model is called in a thread."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from app.engines.base import EngineStats, KvEventSource
from app.painters.base import Painted, PaintRequest, PaintStep
from app.painters.paint_thread import PaintThread
from app.painters.painted_file import painted_file


class ThreadPainter:
    """The methods of `app.painters.base.Painter` that a `PaintThread` answers; `start` makes the thread."""

    _thread: PaintThread
    _steps = 0  # of denoising, so far

    async def paint(self, request: PaintRequest) -> AsyncGenerator[PaintStep | Painted, None]:
        self._check(request)
        async with aclosing(self._thread.paint(request)) as outputs:
            async for one in outputs:
                # Encoding takes some tenths of a second of a core: the next picture is begun meanwhile.
                if isinstance(one, PaintStep):
                    yield one
                else:
                    yield Painted(await asyncio.to_thread(painted_file, request.painting, one))

    def _check(self, request: PaintRequest) -> None:
        """Raises: RequestError (the model can't do it)."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        return EngineStats(self._thread.running, self._thread.waiting, paint_steps=self._steps)

    def kv_events(self) -> Mapping[int, KvEventSource]:
        return {}

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.close)
