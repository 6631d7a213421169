"""Computes how much of a prompt each place can load from tiers behind its cache, and what that costs. Pure.

An engine takes a prompt's leading blocks from its own cache, and each one behind them from host memory or from the
store, as far as it is in one of them.
"""

from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec import Struct

from app.messages.kinds import TierUse
from app.messages.lease import Lease, Speeds
from app.routing.candidates import Option, Tiered

_HOST_BYTES_PER_S, _STORE_BYTES_PER_S = 5e9, 5e8  # assumed for a worker that has loaded none from there yet


class Numbers(Struct, frozen=True):
    """The numbers of a place's cache, its tier in host memory, and its store, in the index; 0: it has none."""

    cache: int
    host: int
    store: int

    @classmethod
    def of(cls, lease: Lease, rank: int) -> "Numbers":
        """The numbers of a place, without tiers that the worker doesn't use."""
        cache, host = (each[rank] if rank < len(each) else 0 for each in (lease.caches, lease.hosts))
        use = worthwhile(lease.speeds, lease.worker.block_size, lease.worker.tier_block_bytes)
        return cls(cache, 0 if use == "none" else host, lease.store if use == "all" else 0)


def worthwhile(speeds: Speeds, block_size: int, block_bytes: int) -> TierUse:
    """The tiers from which a block comes sooner than it would be computed. One that was not measured yet is."""
    if not speeds.prefill_tokens_per_s:
        return "all"
    computed_s = block_size / speeds.prefill_tokens_per_s
    host_s = block_bytes / speeds.host_bytes_per_s if speeds.host_bytes_per_s else 0.0
    store_s = block_bytes / speeds.store_bytes_per_s if speeds.store_bytes_per_s else 0.0
    if host_s >= computed_s:
        return "none"
    return "host" if host_s + store_s >= computed_s else "all"


def load_s(option: Option) -> float:
    """Seconds that it takes to load what the place takes from tiers. What is stored goes through the host's memory."""
    if not option.loads:
        return 0.0
    lease, tiers = option.candidate.lease, option.tiered
    host = tiers.blocks / (lease.speeds.host_bytes_per_s or _HOST_BYTES_PER_S)
    store = tiers.store / (lease.speeds.store_bytes_per_s or _STORE_BYTES_PER_S)
    return lease.worker.tier_block_bytes * (host + store)


# So many blocks, the caches that hold each of them, and the tiers: numbers.
Run = tuple[int, Set[int], Set[int]]


def chains(runs: Iterable[Run], places: Sequence[Numbers]) -> Mapping[int, tuple[int, Tiered]]:
    """The prompt's leading blocks that a place has cached, and those that it loads behind them, by place.

    A place that isn't in it has none. `runs`: of a prompt's blocks in order, as far as each is somewhere.
    """
    going = {i: [0, 0, 0] for i in range(len(places))}  # cached, host, store
    results: dict[int, list[int]] = {}
    for blocks, caches, tiers in runs:
        for i in [*going]:
            here, counts = places[i], going[i]
            if here.cache in caches and not (counts[1] or counts[2]):
                counts[0] += blocks
            elif here.host in tiers:
                counts[1] += blocks
            elif here.store in tiers:
                counts[2] += blocks
            else:
                results[i] = going.pop(i)
        if not going:
            break
    triples = ((i, cached_blocks, Tiered(host, store)) for i, (cached_blocks, host, store) in (results | going).items())
    return {i: (cached_blocks, behind) for i, cached_blocks, behind in triples if cached_blocks or behind.blocks}
