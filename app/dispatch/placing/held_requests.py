"""Held requests, in waiting lines: decides which are placed next, and which are refused. No I/O."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple

from app.dispatch.inflight import Groups, InFlight, Line
from app.dispatch.placing.tenant_shares import TenantShares, flow_of
from app.errors import NoWorker, StoreDown, XylemError
from app.ids import PoolId
from app.pools.schema import Pool
from app.routing.fair_line import FairLine

# How often held requests are tried again; the end of any request is a reason, too. Where tenants share the workers, the
# end of another replica's request may give what waits here its turn.
LOOK_EVERY_S, SHARED_LOOK_S = 0.05, 0.02
_AT_ONCE = 8  # the most urgent of a line, at most, that are tried: where these find no room, the others don't either
# Of all lines of the same pools, and of those of which no worker could take one the last time: Redis does nothing else
# while it looks their prompts up.
_ROUND, _ROUND_WITHOUT = 512, 64
_ATTEMPT_S = 1.0  # the shortest time in which Redis has to answer, however little patience is left
_SILENT_S = 5.0  # after this `place` returns though the request is still held; a refusal is an event from then on


class Taken(NamedTuple):
    heads: list[InFlight]  # of the lines of online requests, to be placed first
    aside: list[InFlight]  # heads of the lines of aside requests
    settled: list[tuple[InFlight, XylemError | None]]  # `place` returns, or raises the error


class HeldRequests:
    """One line for each set of pools, and a second one for its aside requests."""

    def __init__(self, pools: Mapping[PoolId, Pool], patience_s: float, shares: TenantShares) -> None:
        self._pools, self._patience_s, self._shares = pools, patience_s, shares
        self._lines: dict[Line, FairLine[InFlight]] = {}
        self._heads: dict[InFlight, Line] = {}  # that the last round tried
        self._taken: dict[Line, int] = {}  # how many of a line's last heads some worker takes, with room or without
        self._full: dict[Line, float] = {}  # when a line's workers were last found, all of them full (monotonic)
        # Lines without a worker in their last round nor shortly before: new requests are refused.
        self._gone: dict[Line, NoWorker] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[InFlight]:
        return chain.from_iterable(self._lines.values())

    def has_line(self, pools: Collection[PoolId]) -> bool:
        """Whether online requests wait for one of these pools, and not for an adapter."""
        return any(
            not aside and not adapter and any(pool in pools for group in groups for pool in group)
            for groups, aside, adapter in self._lines
        )

    def clear(self) -> None:
        self._lines = {}

    def push(self, inflight: InFlight, why: XylemError | None = None) -> InFlight | None:
        """Holds a request: for lack of room, or for the reason `why`. Returns one that has to be refused instead."""
        if (tried_line := self._heads.pop(inflight, None)) is not None and why is not None:
            self._taken[tried_line] -= 1
        inflight.attempt = inflight.attempt.held(why)
        line = self._lines.get(inflight.line) or FairLine()
        least = line.push(
            inflight,
            flow_of(inflight),
            *urgency(inflight),
            self._most(inflight),
            stays=inflight.job.attempt > 0,
            weights=self._shares.of(inflight).active,
        )
        if line:
            self._lines[inflight.line] = line
        return least

    def remove(self, inflight: InFlight) -> bool:
        """Removes it from its line. Returns whether it was there."""
        line = self._lines.get(inflight.line)
        return line is not None and bool(line.drop(lambda other: other is inflight))

    def has_to_queue(self, inflight: InFlight) -> bool:
        """Whether a request waits behind held ones. Not if these wait for a worker and new requests don't.

        Aside requests always do, so that a thousand of them don't slow the rounds of online ones.
        """
        if inflight.job.aside and (inflight.job.attempt or self._most(inflight)):
            return True
        if not self._lines or not self._lines.get(inflight.line):
            return self._shares.yields(inflight)
        return inflight.job.attempt > 0 or inflight.line not in self._gone

    def full(self, line: Line) -> None:
        """The line's workers are full."""
        self._full[line] = time.monotonic()

    def gone(self, line: Line, why: NoWorker) -> None:
        """The line has had no worker for long."""
        self._gone[line] = why

    def look_again(self, in_flight: Iterable[InFlight]) -> None:
        """The round of these requests tells whether their lines have workers."""
        if self._gone:
            for inflight in in_flight:
                self._gone.pop(inflight.line, None)

    def forget_empty_lines(self) -> None:
        """Lets the next request for an empty line look again for a worker."""
        if self._gone:
            self._gone = {name: why for name, why in self._gone.items() if name in self._lines}

    def may_wait(self, inflight: InFlight) -> bool:
        """Whether it may wait for a worker: an accepted request may, a new one unless the line's workers are gone."""
        return inflight.job.attempt > 0 or inflight.line not in self._gone

    def patience_left_s(self, in_flight: Iterable[InFlight]) -> float:
        """Seconds that they may still wait for Redis; as many as any attempt needs, at least."""
        left_s = self._patience_s
        for f in in_flight:
            if f.attempt.held_since and f.attempt.refused:
                left_s = min(left_s, self._patience_s + f.attempt.held_since - time.monotonic())
        return max(_ATTEMPT_S, left_s)

    def take(self, is_awaited: Callable[[InFlight], bool]) -> Taken:
        """The heads of the lines: fewer of each where there are many lines, which take turns where there are very many.

        Lines that wait for a worker, or for an adapter, take none from the others. Drops requests that are not
        `is_awaited` any more, or have waited too long.
        """
        selection = Taken([], [], [])
        if not self._lines:
            self._heads, self._taken = {}, {}
            return selection
        now, trials = time.monotonic(), dict[Line, list[InFlight]]()
        kinds = {name: (*name[:2], self._taken.get(name) == 0) for name in self._lines}
        lines, counts = Counter(kinds.values()), Counter[tuple[Groups, bool, bool]]()
        for name, line in self._lines.items():
            aside = name[1]
            if aside and now - self._full.get(name, 0.0) < LOOK_EVERY_S:
                continue  # aside requests aren't tried again at each end of a request, as online ones are
            self._drop_from(name, line, now, is_awaited, selection.settled)
            kind = kinds[name]
            room = _ROUND_WITHOUT if kind[-1] else _ROUND
            if counts[kind] < room:
                most = max(1, min(_AT_ONCE, room // lines[kind]))
                trials[name] = line.take(most) if aside else self._shares.next_of(name, line, most)
                (selection.aside if aside else selection.heads).extend(trials[name])
                counts[kind] += len(trials[name])
        for name in [*islice(trials, 1, None), *islice(trials, 1)]:  # the first one, too, is not always the first
            self._lines[name] = self._lines.pop(name)
        self._heads = {inflight: name for name, heads in trials.items() for inflight in heads}
        self._taken = {name: n for name, n in self._taken.items() if name in self._lines}
        self._taken |= {name: len(heads) for name, heads in trials.items() if heads}
        self._lines = {name: line for name, line in self._lines.items() if line}
        return selection

    def _drop_from(
        self,
        name: Line,
        line: FairLine[InFlight],
        now: float,
        is_awaited: Callable[[InFlight], bool],
        settlements: list[tuple[InFlight, XylemError | None]],
    ) -> None:
        """Drops from a line who has waited too long or left. `settlements`: adds those whose `place` returns."""
        full, no_worker, over = self._full.get(name, 0.0), self._gone.get(name), dict[InFlight, XylemError]()
        for inflight in line:
            is_over = now - max(inflight.attempt.held_since, full) > self._patience_s
            why = _given_up(inflight, no_worker, waited=is_over)
            if why is not None:
                over[inflight] = why
            elif now - inflight.attempt.held_since > _SILENT_S:
                settlements.append((inflight, None))
        settlements.extend((f, over.get(f)) for f in line.drop(lambda f: f in over or not is_awaited(f)))

    def waiting(self) -> Iterator[InFlight]:
        """Online requests that wait for room, and for nothing else."""
        return (f for name, line in self._lines.items() if not name[1] for f in line if f.attempt.refused is None)

    def _most(self, inflight: InFlight) -> int:
        return max(self._pools[pool].busy.max_held for pool in inflight.groups[0])


def urgency(inflight: InFlight) -> tuple[int, float]:
    """The sort key, lowest first; of equal priorities, requests that were on a worker already go first."""
    return inflight.job.priority, 0.0 if inflight.job.attempt else inflight.job.deadline


def _given_up(inflight: InFlight, no_worker: NoWorker | None, *, waited: bool) -> XylemError | None:
    """The error with which a held request ends: its line has no worker, or it has waited too long. Else None."""
    if no_worker is not None and not inflight.job.attempt and not isinstance(inflight.attempt.refused, StoreDown):
        return no_worker
    return inflight.attempt.refused if waited else None
