"""Outputs of several streams as one."""

import asyncio
from collections.abc import AsyncGenerator

from app.engines.base import StepOutput


async def merged(*streams: AsyncGenerator[StepOutput, None]) -> AsyncGenerator[StepOutput, None]:
    """Each stream's steps as they come."""
    waiting = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while waiting:
            finished_tasks, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in finished_tasks:
                stream = waiting.pop(task)
                try:
                    step = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(stream))] = stream
                yield step
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
