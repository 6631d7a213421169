"""Loops that run as long as their process.

What one turn raises is logged with its cause and counted, and the loop goes on: nobody would miss one that has ended
before what it keeps is stale. `tests/unit/test_loops.py` finds loops that are kept in no such way.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import NoReturn

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.errors import StoreDown, XylemError
from app.telemetry import LOOP_FAILURES, logger

log = logger(__name__)

_AWAY = (XylemError, RedisError, OSError)  # Redis, a database, a store: they come back, and nothing is wrong here
_FIRST_S, _AWAY_MOST_S, _MOST_S = 0.05, 0.25, 10.0  # the pause after a failed turn, beside the loop's own

Turn = Callable[[], Awaitable[object] | object]
Pause = float | Callable[[], Awaitable[object]]  # seconds, or what is awaited


async def keep(
    failing: str,
    turn: Turn,
    pause: Pause,
    *,
    later: bool = False,
    ends: type[Exception] | None = None,
    **names: object,
) -> NoReturn:
    """Takes turns, with a pause after each, until it is cancelled.

    `failing`: the log's event when a turn fails, and the metric's label. `later`: begins with a pause. `ends`: what a
    turn raises to end the loop. `names`: are logged, too.
    """
    turns, pauses = _Failures(failing, names), _Failures(failing, names)
    if later:
        await _attempt(pauses, partial(rest, failing, pause), ends)
    while True:
        await _attempt(turns, partial(take, failing, turn), ends)
        await _attempt(pauses, partial(rest, failing, pause), ends)


async def _attempt(failures: "_Failures", what: Callable[[], Awaitable[None]], ends: type[Exception] | None) -> None:
    """Waits a while if it fails. Raises: what ends the loop."""
    began = time.monotonic()
    try:
        await what()
    except asyncio.CancelledError as exc:
        if _is_cancelled():
            raise
        failures.note(exc, began)  # something that it awaited was cancelled, and this loop was not
    except Exception as exc:
        if ends is not None and isinstance(exc, ends):
            raise
        failures.note(exc, began)
    else:
        failures.over()
        if _is_cancelled():  # and something took no notice, as `asyncio.wait_for` before Python 3.12
            raise asyncio.CancelledError
        return
    await asyncio.sleep(failures.pause_s)


def keep_in_thread(failing: str, turn: Callable[[], object], over: Callable[[], bool]) -> None:
    """Takes turns in a thread of its own until `over`, which waits for as long as the pause is."""
    failures = _Failures(failing, {})
    while not over():
        began = time.monotonic()
        try:
            take_in_thread(failing, turn)
        except Exception as exc:  # noqa: BLE001 (logged there)
            failures.note(exc, began)
            time.sleep(failures.pause_s)
        else:
            failures.over()


def failures() -> float:
    """Failed turns of all loops of this process."""
    return sum(
        sample.value
        for metric in LOOP_FAILURES.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    )


async def take(_failing: str, turn: Turn) -> None:
    """One turn. Tests throw here."""
    result = turn()
    if isawaitable(result):
        await result


def take_in_thread(_failing: str, turn: Callable[[], object]) -> None:
    """One turn in a thread. Tests throw here."""
    turn()


async def rest(_failing: str, pause: Pause) -> None:
    await (asyncio.sleep(pause) if isinstance(pause, int | float) else pause())


def sooner(event: asyncio.Event, pause_s: float) -> Callable[[], Awaitable[object]]:
    """The pause of a loop that others may wake."""

    async def wait() -> None:
        # Not `wait_for`, which in Python 3.11 misses a cancel that comes with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await event.wait()
        event.clear()

    return wait


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Failures:
    """Failures in a row, of a loop's turns or of its pauses."""

    def __init__(self, event: str, names: Mapping[str, object]) -> None:
        self._event, self._names = event, names
        self._count, self.pause_s = 0, 0.0
        self._last: type[BaseException] | None = None

    def over(self) -> None:
        self._count, self._last = 0, None

    def note(self, exc: BaseException, began: float) -> None:
        """Logs the first, second, fourth, … of a kind in a row: an outage may be long.

        `began`: when what has failed did, monotonic. If that was long ago, the row begins anew: it went well until now.
        """
        if time.monotonic() - began > _MOST_S:
            self.over()
        is_away, self._count = isinstance(exc, _AWAY), self._count + 1 if type(exc) is self._last else 1
        self._last = type(exc)
        self.pause_s = min(_FIRST_S * 2 ** min(self._count, 20), _AWAY_MOST_S if is_away else _MOST_S)
        LOOP_FAILURES.labels(self._event).inc()
        if self._count & (self._count - 1):
            return
        if is_away:
            error = exc.message if isinstance(exc, XylemError) else repr(exc)
            event, facts = _told(exc, self._event)
            log.warning(event, error=error, **facts, **self._names)
        else:
            log.error(self._event, exc_info=exc, **self._names)


def _told(exc: BaseException, failing: str) -> tuple[str, dict[str, str]]:
    """The event of the log, which is the cause where that is Redis: many loops fail of it. And its fields."""
    if isinstance(exc, StoreDown):
        return exc.event, {"failing": failing} | ({"url": exc.url} if exc.url else {})
    if isinstance(exc, RedisConnectionError | RedisTimeoutError):
        return StoreDown.event, {"failing": failing}
    return failing, {}
