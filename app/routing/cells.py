"""Chooses the cell for a request that finds no room in its own. No I/O."""

from collections.abc import Iterable, Mapping
from random import Random

from msgspec import Struct

from app.ids import CellId
from app.routing.candidates import Candidate
from app.routing.policy import can_serve, is_full


class CellLoad(Struct, frozen=True):
    """The load of the workers of some pools in one cell."""

    requests: int = 0
    capacity: int = 0  # requests that their engines take at once
    tokens: int = 0  # prompt tokens to compute
    room: int = 0  # so many more requests, and all of them are full

    @classmethod
    def of(cls, candidates: Iterable[Candidate]) -> "CellLoad":
        serving = [c for c in candidates if can_serve(c)]
        most = [(c.requests, c.lease.worker.max_running + c.limits.max_queued) for c in serving if not is_full(c)]
        return cls(
            sum(c.requests for c in serving),
            sum(c.lease.worker.max_running for c in serving),
            sum(c.tokens for c in serving),
            sum(limit - requests for requests, limit in most),
        )

    def __add__(self, other: "CellLoad") -> "CellLoad":
        return CellLoad(
            self.requests + other.requests,
            self.capacity + other.capacity,
            self.tokens + other.tokens,
            self.room + other.room,
        )

    def sent(self, requests: int) -> "CellLoad":
        """The load with the requests that were sent there since it was read."""
        return CellLoad(self.requests + requests, self.capacity, self.tokens, self.room - requests)


def choose(cells: Mapping[CellId, CellLoad], rng: Random) -> CellId | None:
    """The cell with room whose engines are the least used; among equals, with the fewest waiting tokens.

    None: no cell has room. Among those without a difference, at random: other replicas choose at the same time.
    """
    scores = {
        cell: (load.requests / max(1, load.capacity), load.tokens / max(1, load.capacity), rng.random())
        for cell, load in cells.items()
        if load.room > 0
    }
    return min(scores, key=scores.__getitem__, default=None)
