"""Requests for which there was no room, or no worker, in lines; what becomes of each is decided here. No I/O."""

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from app.dispatch.inflight import InFlight, Line
from app.errors import NoWorker, StoreDown, XylemError
from app.ids import PoolId
from app.pools import Pool
from app.routing.waiting_line import WaitingLine

LOOK_EVERY_S = 0.05  # how often those that found no room look again; the end of a request wakes them as well
_AT_ONCE = 8  # the most urgent of them: where these find no room, the others don't either
_SILENT_S = 5.0  # after this `place` returns though the request is still held; what becomes of it is an event then


class Taken(NamedTuple):
    heads: list[InFlight]  # of the lines, to be placed first
    aside: list[InFlight]  # heads of those lines that give way
    settled: list[tuple[InFlight, XylemError | None]]  # whose `place` is to return, or to raise that


class HeldRequests:
    """In a line for each set of pools, and another one for those of it that give way."""

    def __init__(self, pools: Mapping[PoolId, Pool], patience_s: float) -> None:
        self._pools, self._patience_s = pools, patience_s
        self._lines: dict[Line, WaitingLine[InFlight]] = {}
        self._full: dict[Line, float] = {}  # when a line last heard that there are workers, all of them full
        # Lines that found no worker in their last round, and none that was there lately: nobody new waits in them.
        self._gone: dict[Line, NoWorker] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[InFlight]:
        return chain.from_iterable(self._lines.values())

    def clear(self) -> None:
        self._lines = {}

    def push(self, inflight: InFlight, why: XylemError | None = None) -> InFlight | None:
        """Until there is room, or for some time until there isn't that reason any more. Returns one that has to go."""
        inflight.refused, inflight.placings = why, 0
        inflight.held_since = inflight.held_since or time.monotonic()
        line = self._lines.get(inflight.line) or WaitingLine()
        least = line.push(inflight, *urgency(inflight), self._most(inflight), stays=inflight.job.attempt > 0)
        if line:
            self._lines[inflight.line] = line
        return least

    def has_to_queue(self, inflight: InFlight) -> bool:
        """Behind held requests, unless these wait for a worker for which no new one does.

        What gives way always does: a thousand of them cost each round of the others a few.
        """
        if inflight.job.aside and (inflight.job.attempt or self._most(inflight)):
            return True
        if not self._lines.get(inflight.line):
            return False
        return inflight.job.attempt > 0 or inflight.line not in self._gone

    def full(self, line: Line) -> None:
        """Its workers are."""
        self._full[line] = time.monotonic()

    def gone(self, line: Line, why: NoWorker) -> None:
        """Its workers are, and for long."""
        self._gone[line] = why

    def looks_again(self, line: Line) -> None:
        """Whether it has workers is being asked."""
        self._gone.pop(line, None)

    def forget_empty_lines(self) -> None:
        """A new request of theirs has to ask again whether there is a worker."""
        self._gone = {name: why for name, why in self._gone.items() if name in self._lines}

    def may_wait(self, inflight: InFlight) -> bool:
        """For a worker: an accepted request, and a new one unless its workers are gone."""
        return inflight.job.attempt > 0 or inflight.line not in self._gone

    def take(self, awaited: Callable[[InFlight], bool]) -> Taken:
        """The heads of the lines. Those that are not `awaited` any more, and those that have waited enough, go."""
        taken, now = Taken([], [], []), time.monotonic()
        for name, line in self._lines.items():
            full = self._full.get(name, 0.0)
            aside = name[1]
            if aside and now - full < LOOK_EVERY_S:
                continue  # each end of a request wakes the others, and these would look again each time
            gone, over = self._gone.get(name), dict[InFlight, XylemError]()
            for inflight in line:
                why = _given_up(inflight, gone, waited=now - max(inflight.held_since, full) > self._patience_s)
                if why is not None:
                    over[inflight] = why
                elif now - inflight.held_since > _SILENT_S:
                    taken.settled.append((inflight, None))
            dropped = line.drop(lambda f, over=over: f in over or not awaited(f))  # type: ignore[misc]
            taken.settled.extend((inflight, over.get(inflight)) for inflight in dropped)
            (taken.aside if aside else taken.heads).extend(line.take(_AT_ONCE))
        self._lines = {name: line for name, line in self._lines.items() if line}
        return taken

    def _most(self, inflight: InFlight) -> int:
        return max(self._pools[pool].busy.max_held for pool in inflight.groups[0])


def urgency(inflight: InFlight) -> tuple[int, float]:
    """Of those that are as urgent, the ones that were on a worker already go first."""
    return inflight.job.priority, 0.0 if inflight.job.attempt else inflight.job.deadline


def _given_up(inflight: InFlight, gone: NoWorker | None, *, waited: bool) -> XylemError | None:
    """Why a request is held no longer, if so: no worker comes to its line, or it has waited as long as it may."""
    if gone is not None and not inflight.job.attempt and not isinstance(inflight.refused, StoreDown):
        return gone
    return inflight.refused if waited else None
