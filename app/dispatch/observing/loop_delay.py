"""Measures how busy this process's event loop is, by how long due work has to wait."""

import asyncio
import time

from app.running.loops import keep
from app.telemetry import LOOP_DELAY

_EVERY_S = 0.5


async def observe_loop_delay() -> None:
    """Observes the delay until cancelled."""

    async def once() -> None:
        due = time.perf_counter() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        LOOP_DELAY.observe(max(0.0, time.perf_counter() - due))

    await keep("loop_delay_not_observed", once, 0)
