"""The pauses of a worker whose connection to the broker ends again and again: each longer than the one before.

Celery by itself restarts its consumer at once, twenty times a second, and logs each second that this is too often.
A Redis that refuses writes for want of replicas lets it connect, and fails what comes next.
"""

import time
from collections.abc import Callable
from typing import Any

from celery import bootsteps

_FIRST_S, _MOST_S = 0.1, 5.0
_CALM_S = 30.0  # after so long with a connection, the next restart is the first one again


class RestartPauses:
    """A replacement for Celery's own counter of restarts, which is asked before each."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic) -> None:
        self._sleep, self._now = sleep, now
        self._pause_s, self._last = 0.0, now()

    def step(self) -> None:
        """The first restart is at once."""
        if self._now() - self._last > _CALM_S:
            self._pause_s = 0.0
        self._sleep(self._pause_s)
        self._pause_s = min(max(2 * self._pause_s, _FIRST_S), _MOST_S)
        self._last = self._now()


class RestartPausesStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    def __init__(self, consumer: Any, **_: Any) -> None:
        consumer._restart_state = RestartPauses()  # noqa: SLF001 (Celery has no setting for it)
