"""Ending background tasks."""

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_S = 1.0


async def end_tasks(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancels them, and returns when all of them have ended, in whatever way.

    More than once: before Python 3.12 `asyncio.wait_for`, with which redis-py sends, loses a cancellation that comes
    when what it waits for is just done.
    """
    tasks = list(tasks)
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # what they raised is nobody's any more
