"""A task that runs beside a test, and has ended after it; and what a test waits for."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from app.running.ending import end_tasks


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, object]) -> AsyncIterator["asyncio.Task[object]"]:
    """Raises what `work` raised."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await end_tasks([task])
    if not task.cancelled():
        task.result()


async def until(condition: Callable[[], Any], within_s: float = 10) -> Any:
    """The first true value of a condition, or of what it gives to await."""
    async with asyncio.timeout(within_s):
        while not (value := await _value(condition)):
            await asyncio.sleep(0.01)
    return value


async def until_not(condition: Callable[[], Any], within_s: float = 10) -> None:
    """Waits until it is false."""
    async with asyncio.timeout(within_s):
        while await _value(condition):
            await asyncio.sleep(0.01)


async def _value(condition: Callable[[], Any]) -> Any:
    value = condition()
    return await value if inspect.isawaitable(value) else value
