"""The deployment's time, which is Redis' time: hosts' clocks may be minutes apart, and be set at any moment.

Times that another process reads are `now()`. A time limit is measured with `time.monotonic`, by the one process
that enforces it. Why: `ops/decisions/0023-one-clock.md`.
"""

import time
from collections.abc import Sequence

from msgspec import Struct

from app.keys import Keys
from app.store.wire import Wire

_DRIFT = 200e-6  # relative difference of two clocks' speeds, at most


class ClockReading(Struct, frozen=True):
    """One reading of Redis' clock; seconds."""

    offset: float  # Redis' clock minus this host's monotonic one
    error: float  # of the offset, at most
    at: float  # monotonic time of the reading


def reading(question_at: float, answer_at: float, theirs: Sequence[int]) -> ClockReading:
    """The reading by a TIME sent at `question_at` and answered at `answer_at` (monotonic).

    `theirs`: its reply, seconds and µs.
    """
    seconds, micros = theirs
    return ClockReading(
        int(seconds) + int(micros) / 1e6 - (question_at + answer_at) / 2, (answer_at - question_at) / 2, answer_at
    )


def better(old: ClockReading | None, new: ClockReading) -> ClockReading:
    """The more exact reading; the new one if they contradict each other, since then Redis' clock has been set."""
    if old is None:
        return new
    error = old.error + (new.at - old.at) * _DRIFT
    was_set = abs(new.offset - old.offset) > error + new.error
    return new if was_set or new.error <= error else old


class Clock:
    """The process's view of Redis' clock. Readable from any thread."""

    def __init__(self) -> None:
        self._known: ClockReading | None = None

    def now(self) -> float:
        """Seconds since the epoch, by Redis' clock; by this host's clock until Redis has been read."""
        last_reading = self._known
        return time.time() if last_reading is None else time.monotonic() + last_reading.offset

    def heard(self, question_at: float, theirs: Sequence[int]) -> None:
        """Takes the reply `theirs` to a TIME sent at `question_at` (monotonic), at its arrival."""
        self._known = better(self._known, reading(question_at, time.monotonic(), theirs))

    async def ask(self, wire: Wire, keys: Keys) -> None:
        """Reads Redis' clock: in a cluster that of the node that has the fleet. Raises: StoreDown."""
        send_time = time.monotonic()
        _, theirs = await wire.execute([("EXISTS", keys.wire_versions()), ("TIME",)])
        self.heard(send_time, theirs)


_OF_THIS_PROCESS = Clock()
now, heard, ask = _OF_THIS_PROCESS.now, _OF_THIS_PROCESS.heard, _OF_THIS_PROCESS.ask
