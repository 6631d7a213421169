"""The places of a pool in the order of their lines (`cost.line`), kept as loads change. No I/O.

A line is max(0, the time when its last prompt will be computed − now) + its load's part. While that time is ahead, the
order of two lines doesn't change with `now`, and once it is over neither does it: two sorted lists, and a heap of the
times at which a place moves from the one to the other.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, merge
from random import Random

from app.routing.candidates import Candidate
from app.routing.cost import PoolSpeeds, load_part

_ROUNDING = 1e-6  # seconds, of a difference of times since the epoch
Key = tuple[float, float, int]  # to sort by, a random number that decides between equal ones, the place


class Lines:
    def __init__(self, places: Sequence[Candidate], speeds: PoolSpeeds, rng: Random) -> None:
        self._speed, self._ties = speeds.prefill_tokens_per_s, [rng.random() for _ in places]
        self._busy: list[Key] = []  # by the sum of when its prompts are computed and its load's part
        self._idle: list[Key] = []  # those whose prompts are computed, by the load's part
        self._ends: list[tuple[float, int]] = []  # a heap: when the prompts of a busy place are computed
        self._keys: list[tuple[float, Key]] = []  # by place: that time, and its key
        self._parts = [load_part(c) for c in places]  # of the lines: the loads'
        for i, c in enumerate(places):
            end, key = self._key(i, c)
            self._keys.append((end, key))
            self._busy.append(key)
            self._ends.append((end, i))
        self._busy.sort()
        heapify(self._ends)

    def change(self, place: int, c: Candidate) -> None:
        """Its load is another one now."""
        _, key = self._keys[place]
        for keys in (self._busy, self._idle):
            at = bisect_left(keys, key)
            if at < len(keys) and keys[at] == key:
                del keys[at]
        self._parts[place] = load_part(c)
        end, key = self._keys[place] = self._key(place, c)
        insort(self._busy, key)
        heappush(self._ends, (end, place))

    def ordered(self, now: float) -> Iterator[tuple[float, int]]:
        """Lower bounds of the lines, seconds, and their places, the shortest first. `now`: seconds since the epoch."""
        while self._ends and self._ends[0][0] <= now:
            end, place = heappop(self._ends)
            if self._keys[place][0] == end:
                self._rests(place)
        busy = ((max(0.0, key - now - _ROUNDING), tie, place) for key, tie, place in self._busy)
        return ((line, place) for line, _tie, place in merge(busy, self._idle))

    def _key(self, place: int, c: Candidate) -> tuple[float, Key]:
        end = c.since + c.tokens / self._speed if c.tokens else 0.0
        return end, (end + self._parts[place], self._ties[place], place)

    def _rests(self, place: int) -> None:
        end, key = self._keys[place]
        at = bisect_left(self._busy, key)
        if at == len(self._busy) or self._busy[at] != key:
            return  # it rests already
        del self._busy[at]
        idle_key = self._parts[place], key[1], place
        self._keys[place] = end, idle_key
        insort(self._idle, idle_key)
