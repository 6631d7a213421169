"""Ending background tasks."""

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_S = 1.0


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
