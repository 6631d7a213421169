"""Prompts with shared beginnings on workers whose layers differ, simulated: what their caches have by the placements.

An engine keeps the point where two prompts part only when it computes the second of them.
"""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from random import Random
from statistics import mean

import pytest
from msgspec.structs import replace

from app.ids import WorkerId
from app.messages.lease import Speeds
from app.pools.schema import Routing
from app.routing.candidates import Ask, Candidate, Matches, PlaceLimits
from app.routing.policy import place
from tests.unit.test_policy import candidate

_SPEED, _BLOCK = 1000.0, 32  # tokens a second, and in a block
_SHARED, _OWN = 50, 40  # blocks of a beginning, and tokens behind it
_POINT, _REST = 20, 12  # blocks that windows keep for a point, and that a prompt leaves besides
_STEP_S, _PAUSE_S = 0.02, 0.1


class Engine:
    """Computes one prompt after the other; its cache drops what was not used for the longest time."""

    def __init__(self, number: int, room: int) -> None:
        self._room, self._used = room, 0  # blocks
        self._held: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._line: list[tuple[float, int]] = []  # when each prompt is computed, and its tokens
        self.alone = candidate(f"{number}", limits=PlaceLimits(100), block_size=_BLOCK, total_blocks=room)

    def has(self, what: str, beginning: int) -> bool:
        return (what, beginning) in self._held

    def candidate(self, now: float) -> Candidate:
        self._line = [one for one in self._line if one[0] > now]
        tokens = [tokens for _end, tokens in self._line]
        since = self._line[0][0] - tokens[0] / _SPEED if tokens else 0.0
        lease = replace(self.alone.lease, speeds=Speeds(_SPEED, 0.5, 0.7, 1.0))
        busy = {"requests": len(tokens), "waiting": len(tokens), "tokens": sum(tokens), "since": since}
        return replace(self.alone, lease=lease, **busy)

    def compute(self, now: float, number: int, beginning: int) -> tuple[float, int]:
        """The time at which the prompt is computed, and the number of its tokens that were cached."""
        cached_tokens = _SHARED * _BLOCK if self.has("all", beginning) and self.has("point", beginning) else 0
        if self.has("all", beginning):
            self._keep("point", beginning, _POINT)
        self._keep("all", beginning, _SHARED)
        self._keep("own", number, _REST)
        tokens = _SHARED * _BLOCK + _OWN - cached_tokens
        end = max(now, self._line[-1][0] if self._line else 0.0) + tokens / _SPEED + _STEP_S
        self._line.append((end, tokens))
        return end, cached_tokens

    def _keep(self, what: str, number: int, blocks: int) -> None:
        if self.has(what, number):
            self._held.move_to_end((what, number))
            return
        while self._used + blocks > self._room:
            self._used -= self._held.popitem(last=False)[1]
        self._held[what, number] = blocks
        self._used += blocks


def run(seed: int, engines: int, clients: int, beginnings: int, requests: int, room: float, *, told: bool) -> float:
    """The share of all tokens that was cached. `told`: placement knows what was computed once."""
    random = Random(seed)
    blocks = round(beginnings * room) * (_SHARED + _POINT) + 6 * (_SHARED + 2)
    workers = [Engine(number, blocks) for number in range(engines)]
    free = [(0.0, client) for client in range(clients)]
    heapify(free)
    cached_tokens = 0
    for number in range(requests):
        now, client = heappop(free)
        beginning = random.randrange(beginnings)
        point, beginning_holders = (
            frozenset(i for i, one in enumerate(workers) if one.has(what, beginning)) for what in ("point", "all")
        )
        matches = Matches([(_SHARED, point)], beginnings=[(_SHARED, beginning_holders)] if told else [])
        options = [matches.option(i, one.candidate(now)) for i, one in enumerate(workers)]
        to: WorkerId = place(Ask(_SHARED * _BLOCK + _OWN, 2, now=now), options, Routing(), random).placement.worker
        end, had = workers[int(to)].compute(now, number, beginning)
        cached_tokens += had
        heappush(free, (end + _PAUSE_S, client))
    return cached_tokens / requests / (_SHARED * _BLOCK + _OWN)


@pytest.mark.parametrize(("engines", "beginnings", "requests"), [(2, 20, 200), (8, 60, 800)])
def test_workers_that_tell_beginnings_have_most_of_what_one_with_room_for_all_has(
    engines: int, beginnings: int, requests: int
) -> None:
    """Each has room for 7 of 12 of the beginnings, and as many prompts come at once as there are workers."""
    whole, told_share, untold = (
        mean(run(seed, *fleet, beginnings, requests, room, told=knows) for seed in range(5))
        for fleet, room, knows in (
            ((1, 1), 2.0, False),
            ((engines, engines), 7 / 12, True),
            ((engines, engines), 7 / 12, False),
        )
    )
    assert told_share > 0.9 * whole
    assert told_share > untold + 0.02
