"""Ends a worker that hangs: it lives and has work, but makes no token, or its event loop is blocked."""

import os
import time
from collections import deque
from functools import partial
from threading import Thread

from app.runner.runner import Runner
from app.running.loops import keep_in_thread
from app.telemetry import logger
from workers.engine.lease import LeaseKeeper

log = logger(__name__)
_EVERY_S = 0.5
_DELAYS = 30  # the last ones, of which the longest is told


class HangWatchdog(Thread):
    """A thread, since the event loop may hang. Requests are placed elsewhere; a supervisor restarts the worker."""

    def __init__(self, runner: Runner, lease: LeaseKeeper, stall_s: float) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._runner, self._lease, self._stall_s = runner, lease, stall_s
        self._made = -1
        self._moved = self._turned = time.monotonic()  # when the last token came, and when the loop last ran
        self._delays: deque[float] = deque(maxlen=_DELAYS)

    def run(self) -> None:
        keep_in_thread("hangs_not_looked_for", self._look, self._is_over)

    def _is_over(self) -> bool:
        self._runner.soon(partial(self._turn, time.monotonic()))
        time.sleep(_EVERY_S)
        return self._runner.stopping

    def _look(self) -> None:
        if reason := self.hangs(time.monotonic()):
            log.critical("engine_hangs", reason=reason, requests=len(self._runner.runs))
            os._exit(1)  # a hanging process can't end cleanly

    def hangs(self, now: float) -> str:
        """The reason why the worker has to be ended, or ''. `now`: monotonic."""
        outputs = self._runner.emitters.outputs
        # Without Redis, requests may wait for it: then the engine doesn't hang.
        store_away = now - self._lease.fresh > self._runner.settings.lease_ttl_s or self._runner.emitters.full
        # A closed one may be told to stand still.
        idle = not self._runner.throughput.working.requests or self._runner.closed
        if outputs != self._made or idle or store_away:
            self._made, self._moved = outputs, now
        if self.stands_s(now) > self._stall_s:
            return "its event loop is blocked"
        if now - self._moved > self._stall_s:
            return f"no token for {self._stall_s:g} s"
        return ""

    def stands_s(self, now: float) -> float:
        """Seconds for which the event loop has not run. `now`: monotonic."""
        return now - self._turned

    def _turn(self, question_at: float) -> None:
        self._turned = time.monotonic()
        self._delays.append(self._turned - question_at)
        self._runner.loop_delay_s = max(self._delays)
