"""The workers of one pool, as this process last heard of them. No I/O."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from random import Random
from statistics import fmean
from struct import unpack
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.dispatch.fleet.loads import ENTRY, NOTHING, Loads
from app.ids import PlaceId, WorkerId, place_id
from app.kv.groups import blocks_of_step, grid_of, points_left
from app.messages.lease import Grid, Lease
from app.messages.wire import WIRE_VERSION
from app.routing.candidates import Candidate, Matches, PlaceLimits
from app.routing.cost import PoolSpeeds
from app.routing.lines import Lines
from app.routing.tier_cost import Numbers, chains
from app.store import Command

_MANY = 16  # places; of fewer, looking at all of them is faster than finding some
_MOST_HOLDERS = 1000
_NONE: Mapping[bytes, bytes] = MappingProxyType({})
_NOT_CACHED: tuple[Sequence[Any], Sequence[Any]] = ((), ())  # a prompt's reply of `match.lua`


class PoolView(Struct, frozen=True):
    """The pool for one round of placement."""

    candidates: list[Candidate]
    matches: list[Matches]  # of each prompt that was asked about
    indices: dict[PlaceId, int]  # of the candidates
    homes: dict[str, list[int]] = {}  # here and below as `PoolFleet` has it
    lines: Lines | None = None
    speeds: PoolSpeeds | None = None
    lately: bool = False  # it has a worker in any state, or had one within the last `patience_s`
    looked_up: bool = False  # the prompts were, in what its caches hold


class PoolFleet:
    def __init__(self) -> None:
        self.known = -1.0  # the score of the last change that was read; below 0: nothing was read yet
        self.leases: dict[WorkerId, Lease] = {}
        self.indices: dict[PlaceId, int] = {}  # of the places in the candidates
        self.guessed: list[PlaceId] = []  # those whose engines report no KV events
        self.older: list[tuple[WorkerId, int]] = []  # those of workers of the wire version before, with their ranks
        self.members: set[WorkerId] = set()
        self.lapsed: set[WorkerId] = set()  # members of the pool that have no lease
        self.weights = ""  # the version that most workers have, if it isn't the pool's own
        self.grid: Grid | None = None  # what prompts are hashed by for most workers; None: there is none
        self.homes: dict[str, list[int]] = {}  # by session: the places that it prefers, see `routing/shortlist.py`
        self.has_tiers = False  # some worker has
        self.lines: Lines | None = None  # where there are many places, and all compute prompts and load none
        self.speeds: PoolSpeeds | None = None
        self._rng = Random()  # noqa: S311 (spreads load, guards nothing)
        self._caches: dict[int, int] = {}  # number of a KV cache → its place's index
        self._beginnings: dict[int, int] = {}  # the same, of what its layers that see everything hold
        # Packed numbers → places of either: those of hot prefixes are read once.
        self._holders: dict[bytes, tuple[frozenset[int], frozenset[int]]] = {}
        self._places: list[tuple[Lease, int]] = []
        self._others: set[int] = set()  # places whose prompts are hashed by something else: no one looks them up
        self.left = 1  # points from one to the next of those that a prompt leaves behind; 0: the one at its end
        self._blocks = 1  # of a place, from one point at which a prompt may resume to the next
        self._numbers: list[Numbers] | None = None  # of the places, once they are needed
        self._names: dict[bytes, int] = {}  # of the places, with their indices
        self._loads = Loads()
        self._entries: list[bytes] = []  # of the places
        self._candidates: list[Candidate] = []
        self._limits: PlaceLimits | None = None

    def changes(self, key: str) -> Command:
        """The command that reads what has changed since, from a key as `Keys.changed` names it."""
        return "ZRANGE", key, f"({self.known:.0f}", "+inf", "BYSCORE", "WITHSCORES"

    def set(self, leases: Mapping[WorkerId, Lease | None]) -> None:
        """Takes over the leases of all workers; None: it has gone, or its lease isn't understood."""
        self.leases = {worker: lease for worker, lease in leases.items() if lease is not None}
        places = [(lease, rank) for lease in _timed(self.leases.values()) for rank in range(lease.worker.ranks)]
        names = [place_id(lease.worker.id, rank) for lease, rank in places]
        encoded_names = {name.encode(): i for i, name in enumerate(names)}
        if encoded_names != self._names:
            self.homes = {}  # a round that goes on with the places of before has the other one
        self._holders.clear()
        self._names, self._limits = encoded_names, None
        self.indices = {name: i for i, name in enumerate(names)}
        self._caches = _by_number([(lease.caches, rank) for lease, rank in places])
        self._beginnings = _by_number([(lease.beginnings, rank) for lease, rank in places])
        self._set_grid([lease for lease, _rank in places])
        self.guessed = [name for name, (lease, _) in zip(names, places, strict=True) if not lease.worker.kv_events]
        self.older = [(lease.worker.id, rank) for lease, rank in places if lease.wire < WIRE_VERSION]
        self._places, self._numbers = places, None
        self.has_tiers = any(lease.worker.tier_block_bytes for lease in self.leases.values())
        versions = Counter(lease.state.weights for lease in self.leases.values())
        self.weights = versions.most_common(1)[0][0] if versions else ""

    def _set_grid(self, leases: Sequence[Lease]) -> None:
        """`leases`: of the places."""
        grids = [grid_of(lease.worker) for lease in leases]
        counts = Counter(grids)  # of equally many the shorter step, so that all replicas say the same
        self.grid = max(counts, key=lambda grid: (counts[grid], -grid.step, -grid.block_size), default=None)
        self._others = {i for i, grid in enumerate(grids) if grid != self.grid}
        self._caches, self._beginnings = (
            {number: i for number, i in numbers.items() if i not in self._others}
            for numbers in (self._caches, self._beginnings)
        )
        alike = next((lease.worker for lease in leases if grid_of(lease.worker) == self.grid), None)
        self._blocks, self.left = (1, 1) if alike is None else (blocks_of_step(alike), points_left(alike))

    def replace(self, leases: Mapping[WorkerId, Lease | None]) -> None:
        """Takes over the leases of some workers."""
        if any(self.leases.get(worker) != lease for worker, lease in leases.items()):
            self.set({**self.leases, **leases})

    def candidates(
        self, groups: Mapping[bytes, bytes], limits: PlaceLimits, older: Mapping[bytes, bytes] = _NONE
    ) -> list[Candidate]:
        """Each place with what is reserved there; those that have not changed are the same objects as before.

        `groups`: `loads:<pool>`. `older`: the entries of places of the wire version before, which are not in it.
        """
        changes = {**self._loads.take(groups), **older}
        if limits != self._limits:
            now = {**self._loads.entries, **older}
            self._limits, self._entries = limits, [now.get(name, NOTHING) for name in self._names]
            self._candidates = [self._candidate(i, entry) for i, entry in enumerate(self._entries)]
            self._begin_lines()
            return self._candidates.copy()
        for name, entry in changes.items():
            i = self._names.get(name)
            if i is not None and entry != self._entries[i]:
                self._entries[i] = entry
                c = self._candidates[i] = self._candidate(i, entry)
                if self.lines is not None:
                    self.lines.change(i, c)
        return self._candidates.copy()

    def _begin_lines(self) -> None:
        self.speeds = PoolSpeeds.of([lease for lease, _rank in self._places])
        many = len(self._places) >= _MANY and all(lease.worker.computes for lease in self.leases.values())
        alike = many and not self.has_tiers  # what is loaded has a price of its own
        self.lines = Lines(self._candidates, self.speeds, self._rng) if alike else None

    def _candidate(self, index: int, entry: bytes) -> Candidate:
        assert self._limits is not None
        lease, rank = self._places[index]
        requests, blocks, tokens, waiting, pulls, aside, aside_blocks, since_ms = ENTRY.unpack(entry)
        return Candidate(
            lease,
            self._limits,
            rank=rank,
            requests=requests,
            blocks=blocks,
            tokens=tokens,
            waiting=waiting,
            since=since_ms / 1000,
            pulls=pulls,
            aside=aside,
            aside_blocks=aside_blocks,
        )

    def matches(
        self, coming: Sequence[Sequence[Any]], cache_replies: Sequence[Sequence[Any]] | None, guesses: Sequence[PlaceId]
    ) -> list[Matches]:
        """The matches of each prompt, from the replies of `coming.lua` and `match.lua`.

        `guesses`: the places that `match.lua` was asked about. `cache_replies`: its replies; None: the index is away.
        """
        if len(self._holders) > _MOST_HOLDERS:
            self._holders.clear()
        cache_replies = cache_replies or [_NOT_CACHED] * len(coming)
        return [self._matches(*one, guesses) for one in zip(coming, cache_replies, strict=True)]

    def tiered_matches(self, coming: Sequence[Sequence[Any]], replies: Sequence[Sequence[Any]] | None) -> list[Matches]:
        """The same from the replies of `match_tiers.lua`."""
        if self._numbers is None:
            self._numbers = [Numbers.of(lease, rank) for lease, rank in self._places]
        replies = replies or [()] * len(coming)
        return [self._tiered(*one, self._numbers) for one in zip(coming, replies, strict=True)]

    def _tiered(self, starting: Sequence[Any], reply: Sequence[Any], numbers: Sequence[Numbers]) -> Matches:
        runs = [
            (blocks, _numbers(caches), _numbers(tiers))
            for blocks, caches, tiers in zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        ]
        by_place = chains(runs, numbers)
        depths: dict[int, set[int]] = {}
        for place, (cached_blocks, _) in by_place.items():
            depths.setdefault(cached_blocks, set()).add(place)
        places_by_depth = [(depth, frozenset(depths[depth])) for depth in sorted(depths, reverse=True) if depth]
        return Matches(
            places_by_depth, self._starting(starting), {place: behind for place, (_, behind) in by_place.items()}
        )

    def _matches(self, starting: Sequence[Any], reply: Sequence[Any], place_ids: Sequence[PlaceId]) -> Matches:
        depths, guesses = reply
        places_by_depth, beginnings = [], []
        for depth, caches in zip(depths[::2], depths[1::2], strict=True):
            if caches not in self._holders:
                self._holders[caches] = self._places_of(caches)
            whole, begins = self._holders[caches]
            places_by_depth.append((depth * self._blocks, whole))
            if begins:
                beginnings.append((depth * self._blocks, begins))
        if any(guesses):
            guessed_blocks = [
                (name, blocks * self._blocks) for name, blocks in zip(place_ids, guesses, strict=True) if blocks
            ]
            places = [(blocks, self.indices.get(name)) for name, blocks in guessed_blocks]
            places_by_depth += [(n, frozenset([i])) for n, i in places if i is not None and i not in self._others]
            places_by_depth.sort(key=itemgetter(0), reverse=True)
        return Matches(places_by_depth, self._starting(starting) if starting else {}, beginnings=beginnings)

    def _places_of(self, raw: bytes) -> tuple[frozenset[int], frozenset[int]]:
        numbers = _numbers(raw)
        whole = frozenset([self._caches[n] for n in numbers if n in self._caches])
        return whole, frozenset([self._beginnings[n] for n in numbers if n in self._beginnings])

    def _starting(self, starting: Sequence[Any]) -> dict[int, int]:
        coming: dict[int, int] = {}
        for name, blocks in zip(starting[::2], starting[1::2], strict=True):
            place = self.indices.get(PlaceId(name.decode()))
            if place is not None and place not in self._others:
                coming[place] = max(blocks * self._blocks, coming.get(place, 0))
        return coming


def _numbers(numbers: bytes) -> frozenset[int]:
    return frozenset(unpack(f">{len(numbers) // 4}I", numbers))


def _by_number(places: Sequence[tuple[Sequence[int], int]]) -> dict[int, int]:
    """The index of each place, of which there are these numbers and its rank, by its own number. 0 is none."""
    return {numbers[rank]: i for i, (numbers, rank) in enumerate(places) if rank < len(numbers) and numbers[rank]}


def _timed(leases: Collection[Lease]) -> list[Lease]:
    """A worker where no request has ended yet has the others' mean: its requests take as long."""
    durations = [lease.speeds.request_s for lease in leases if lease.speeds.request_s]
    if not durations or len(durations) == len(leases):
        return [*leases]
    mean = fmean(durations)
    return [
        lease if lease.speeds.request_s else replace(lease, speeds=replace(lease.speeds, request_s=mean))
        for lease in leases
    ]
