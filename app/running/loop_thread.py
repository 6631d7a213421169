"""An event loop that runs in a thread of its own."""

import asyncio
from collections.abc import Coroutine
from threading import Thread
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


class LoopThread:
    def __init__(self, name: str) -> None:
        """`name`: the thread's."""
        self.loop = uvloop.new_event_loop()
        self._thread = Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, coro: Coroutine[Any, Any, T]) -> T:
        """Runs `coro` there, and blocks until it has ended. From any other thread."""
        return asyncio.run_coroutine_threadsafe(coro, self.loop).result()

    async def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Runs `coro` there, and awaits its end on another loop. Cancelling this cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coro, self.loop))

    def close(self) -> None:
        """Ends the thread. What runs there should have ended."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
