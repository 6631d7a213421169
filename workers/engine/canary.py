"""Looks whether an idle engine still computes: a part of it may have died, or hang. On the engine's loop.

The watchdog sees that only of an engine with requests, and routing likes an idle worker best.
"""

import asyncio
import os
import time

from msgspec.structs import replace

from app.errors import EngineFailed, XylemError
from app.runner.runner import Runner
from app.running.loops import keep
from app.telemetry import logger
from workers.engine.lease import LeaseKeeper
from workers.engine.presence import Presence

log = logger(__name__)

_LATE_S = 4.0  # until a probe has its answer, most engines need some milliseconds
_LOOKS = 20  # at the worker, in the idle time after which it is probed
_LOOK_S = 0.5  # at least as often


class Idleness:
    """The time for which a worker has had nothing to do, and its engine was not asked either. Pure."""

    def __init__(self, now: float) -> None:
        self._since, self._outputs = now, -1

    def seconds(self, now: float, outputs: int, *, busy: bool) -> float:
        """`outputs`: tokens and steps that it has sent so far. `busy`: it has requests, or stands still."""
        if busy or outputs != self._outputs:
            self._since, self._outputs = now, outputs
        return now - self._since

    def ends(self, now: float) -> None:
        """The engine has answered."""
        self._since = now


def patience_s(took_s: float) -> float:
    """Seconds that a probe may take before its worker leaves routing.

    `took_s`: of the probe before, since engines may be slow.
    """
    return max(_LATE_S, 2 * took_s)


class Canary:
    def __init__(self, runner: Runner, lease: LeaseKeeper, presence: Presence, changing: asyncio.Lock) -> None:
        """`changing`: held while the engine's state changes, or its adapters do."""
        self._runner, self._lease, self._presence, self._changing = runner, lease, presence, changing
        self._took_s = 0.0
        self._every_s, self._idleness = runner.settings.canary_s, Idleness(time.monotonic())

    async def run(self) -> None:
        """Probes the engine when it is idle, until cancelled."""
        await keep("engine_not_probed", self._look, min(_LOOK_S, self._every_s / _LOOKS), later=True)

    async def _look(self) -> None:
        outputs = self._runner.emitters.outputs
        if self._idleness.seconds(time.monotonic(), outputs, busy=self._is_busy) < self._every_s:
            return
        async with self._changing:  # nobody has it: it is not waited for
            try:
                await self._probe()
            except EngineFailed as exc:
                log.critical("engine_failed_idle", reason=exc.message)
                await self._presence.give_up(exc.message)  # so that it is busy from now on
            except XylemError as exc:
                log.error("probe_refused", reason=exc.message)
        self._idleness.ends(time.monotonic())

    @property
    def _is_busy(self) -> bool:
        runner = self._runner
        return bool(runner.runs or runner.closed or self._lease.stays_out or self._changing.locked())

    async def _probe(self) -> None:
        """Raises: XylemError."""
        began, stall_s = time.monotonic(), self._runner.settings.stall_s
        probe_task = asyncio.create_task(self._presence.probe())
        try:
            if not await _is_done(probe_task, min(patience_s(self._took_s), stall_s)):
                log.error("engine_late", seconds=round(time.monotonic() - began, 1))
                state = self._presence.state
                await self._presence.tell(replace(state, changing=True))
                if not await _is_done(probe_task, began + stall_s - time.monotonic()):
                    log.critical("engine_hangs", reason=f"idle, and no answer for {stall_s:g} s")
                    os._exit(1)  # a hanging process can't end cleanly
                await self._presence.come_back(state)
            self._took_s = time.monotonic() - began
            probe_task.result()
        finally:
            probe_task.cancel()


async def _is_done(task: "asyncio.Task[None]", within_s: float) -> bool:
    return bool((await asyncio.wait([task], timeout=max(0.0, within_s)))[0])
