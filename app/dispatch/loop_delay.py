"""How busy this process's event loop is: what has to be done waits for so long."""

import asyncio
import time

from app.loops import keep
from app.telemetry import LOOP_DELAY

_EVERY_S = 0.5


async def observe_loop_delay() -> None:
    """Until cancelled."""

    async def once() -> None:
        due = time.perf_counter() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        LOOP_DELAY.observe(max(0.0, time.perf_counter() - due))

    await keep("loop_delay_not_observed", once, 0)
