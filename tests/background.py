"""A task that runs beside a test, and has ended after it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
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
