"""Assigns adapters to the workers of a pool. Pure: each worker decides by itself, and all decide the same."""

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from app.ids import PoolId, WorkerId
from app.messages.lease import Lease
from app.messages.wanted import Adapter

_ROOM = 2.0  # an adapter's workers have so many times the seats that its requests take


class Member(Struct, frozen=True):
    """A worker of the pool, as far as adapters go."""

    id: WorkerId
    slots: int  # adapters that it holds at once
    seats: int  # requests that it runs at once
    failed: frozenset[str] = frozenset()  # what it could not load, by `Adapter.versioned`
    requests: Mapping[str, int] = {}  # that it has, likewise

    @classmethod
    def of(cls, lease: Lease) -> "Member":
        own, adapters = lease.worker, lease.adapters
        return cls(own.id, own.max_adapters, own.max_running * own.ranks, frozenset(adapters.failed), adapters.requests)


def is_for(adapter: Adapter, pool: PoolId, model: str) -> bool:
    """Whether that pool, which serves that model, is to load it."""
    return adapter.model == model and (not adapter.pools or pool in adapter.pools)


def wanted(adapter: Adapter, members: Sequence[Member]) -> int:
    """Number of members that are to have it: as many as it says, and more where its share of their load is larger."""
    seats = sum(member.seats for member in members)
    requests = sum(member.requests.get(adapter.versioned, 0) for member in members)
    by_load = math.ceil(len(members) * _ROOM * requests / seats) if seats else 0
    return min(len(members), max(adapter.min_workers, by_load))


def assign(adapters: Iterable[Adapter], members: Sequence[Member]) -> dict[WorkerId, list[str]]:
    """Adapters that each member is to have, by `Adapter.versioned`, as far as there are slots.

    By rendezvous hashing: when a worker comes or goes, only what it had moves. What one could not load, the next does.
    First all adapters get as many workers as they say, and then those with more load what is left.
    """
    free = {member.id: member.slots for member in members}
    assignment: dict[WorkerId, list[str]] = {member.id: [] for member in members}
    sorted_adapters = sorted(adapters, key=lambda adapter: adapter.name)
    counts = {adapter.name: 0 for adapter in sorted_adapters}
    for most in (lambda a: a.min_workers, lambda a: wanted(a, members)):
        for adapter in sorted_adapters:
            name = adapter.versioned
            for member in order(adapter, members):
                if counts[adapter.name] >= most(adapter):
                    break
                if free[member.id] and name not in member.failed and name not in assignment[member.id]:
                    free[member.id] -= 1
                    assignment[member.id].append(name)
                    counts[adapter.name] += 1
    return assignment


def order(adapter: Adapter, members: Iterable[Member]) -> list[Member]:
    """Members in the adapter's order: by its name, not its version, so that a new version is where the old one was."""
    return sorted(members, key=lambda member: -xxh3_64_intdigest(f"{adapter.name}\0{member.id}".encode()))
