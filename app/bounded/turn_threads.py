"""Threads for which clients wait in turn."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar, TypeVarTuple, Unpack

from app.bounded.turns import CLIENT, Turns
from app.errors import NoProcess

T = TypeVar("T")
Args = TypeVarTuple("Args")


class TurnThreads:
    """A pool of threads for one event loop: each client's work in turn, however much it has."""

    def __init__(self, at_once: int, name: str) -> None:
        """`name`: with which the threads' names begin."""
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix=name)
        self._turns = Turns(at_once)

    async def run(self, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
        """Runs `work` in a thread, with the context of this. Raises what it raises; Saturated; NoProcess: no thread."""
        loop, context = asyncio.get_running_loop(), copy_context()
        await self._turns.take(CLIENT.get())
        try:
            working = self._threads.submit(lambda: context.run(work, *args))
        except RuntimeError as exc:  # closed, or as many threads as there may be
            self._turns.end()
            raise NoProcess from exc

        def ended(_: Future[T]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._turns.end)

        working.add_done_callback(ended)  # later than now if this is cancelled
        return await asyncio.wrap_future(working)

    def close(self, *, wait: bool = True) -> None:
        """Begins nothing more. `wait`: blocks until what has begun is over."""
        self._threads.shutdown(wait, cancel_futures=True)
