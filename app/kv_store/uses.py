"""Notes when a store's blocks were used: so that it first loses what is unused for longest, and tails before heads.

A block is of no use without those before it. Who uses one uses these too, even if they were never loaded: an engine has
them in its own memory. So all blocks of a request are noted, wherever they came from, but each once in a period: as the
time of its use counts the period's end, less a little for each token before the block's end. No clock, no I/O.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

_LATER_S = 1e-4  # that a block is older than one that ends a token before it
_MOST = 200_000  # blocks, after which a period begins anew

Block = TypeVar("Block", bound=Hashable)


def used(now: float, period_s: float, end: int) -> float:
    """The time to note for a block that is used now, s since the epoch. `end`: of its tokens, in its prompt."""
    return (now // period_s + 1) * period_s - end * _LATER_S


class Uses(Generic[Block]):
    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._period = 0.0
        self._noted: set[Block] = set()  # in this period

    def due(self, blocks: Iterable[tuple[Block, int]], now: float) -> list[tuple[Block, float]]:
        """Blocks of a prompt that are to be noted, tails first, and with which time. `blocks`: with their ends."""
        if (period := now // self._period_s) != self._period or len(self._noted) > _MOST:
            self._period, self._noted = period, set()
        fresh = [(block, end) for block, end in blocks if block not in self._noted]
        self._noted.update(block for block, _ in fresh)
        fresh.sort(key=lambda one: -one[1])
        return [(block, used(now, self._period_s, end)) for block, end in fresh]
