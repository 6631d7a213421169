"""The deployment's time, which is that of Redis: hosts' own clocks may be minutes apart, and be set at any moment.

What one process writes down and another one compares is `now()`. How long something may take is measured with
`time.monotonic` by the one process that decides about it. Why: `ops/decisions/0023-one-clock.md`.
"""

import time
from collections.abc import Sequence

from msgspec import Struct

from app.store.wire import Wire

_DRIFT = 200e-6  # by which two clocks' speeds may differ


class ClockReading(Struct, frozen=True):
    """What one answer of Redis says; seconds."""

    offset: float  # of Redis' clock from this host's monotonic one
    error: float  # it may be off by as much
    at: float  # when, monotonic


def reading(asked: float, answered: float, theirs: Sequence[int]) -> ClockReading:
    """Of TIME, asked and answered then (monotonic): it was read at some time between. `theirs`: s and µs."""
    seconds, micros = theirs
    return ClockReading(int(seconds) + int(micros) / 1e6 - (asked + answered) / 2, (answered - asked) / 2, answered)


def better(known: ClockReading | None, new: ClockReading) -> ClockReading:
    """The more exact one by now; the new one when both can't be true, since then Redis' clock has been set."""
    if known is None:
        return new
    error = known.error + (new.at - known.at) * _DRIFT
    was_set = abs(new.offset - known.offset) > error + new.error
    return new if was_set or new.error <= error else known


class Clock:
    """This process'. Readable from any thread."""

    def __init__(self) -> None:
        self._known: ClockReading | None = None

    def now(self) -> float:
        """Seconds since the epoch, by Redis' clock; by this host's as long as Redis has said nothing."""
        known = self._known
        return time.time() if known is None else time.monotonic() + known.offset

    def heard(self, asked: float, theirs: Sequence[int]) -> None:
        """The answer to a TIME that was sent at `asked` (monotonic) has just come."""
        self._known = better(self._known, reading(asked, time.monotonic(), theirs))

    async def ask(self, wire: Wire) -> None:
        """Raises: StoreDown."""
        asked = time.monotonic()
        (theirs,) = await wire.execute([("TIME",)])
        self.heard(asked, theirs)


_OF_THIS_PROCESS = Clock()
now, heard, ask = _OF_THIS_PROCESS.now, _OF_THIS_PROCESS.heard, _OF_THIS_PROCESS.ask
