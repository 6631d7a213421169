"""Stalls of this process' event loop."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def watched(work: Awaitable[T], tick_s: float = 0.0) -> tuple[T, float]:
    """Its result, and the longest time in seconds by which the loop was late for a timer meanwhile, of `tick_s`."""
    longest = asyncio.create_task(_longest(tick_s))
    await asyncio.sleep(0)
    result = await work
    longest.cancel()
    return result, await longest


async def _longest(tick_s: float) -> float:
    longest = began = 0.0
    try:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(tick_s)
            longest = max(longest, time.perf_counter() - began - tick_s)
    except asyncio.CancelledError:
        return max(longest, time.perf_counter() - began - tick_s)
