"""Tasks side by side, and their end; and the signals that end a process."""

import asyncio
import signal
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

_AGAIN_S = 1.0


async def side_by_side(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order. Raises: the first error, when the others have ended."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)


async def end_tasks(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancels `tasks`, and returns when all have ended, in whatever way.

    Cancels again every second: before Python 3.12 `asyncio.wait_for`, with which redis-py sends, loses a cancellation
    that comes just when its awaitable is done.
    """
    tasks = list(tasks)
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # nobody else reads their exceptions


def end_signals() -> list[signal.Signals]:
    """Signals after which a process ends in good order. A hang-up that is ignored, as after `nohup`, is none."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hangup]
