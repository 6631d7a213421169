"""Decides which workers of a pool have which pinned prefixes, and what they compute for it. Pure.

Each worker decides by itself, and all decide the same; API replicas look whether it is so.
"""

from collections.abc import Iterable, Iterator, Sequence

from xxhash import xxh3_64_intdigest

from app.ids import WorkerId
from app.messages.lease import Lease, Worker
from app.messages.wanted import Prefix

_SHARE = 2  # half of a cache is left to requests
_PART = 2048  # tokens that are computed at once: so long a request that comes waits for it


def room(worker: Worker) -> int:
    """Blocks that prefixes may take of each of its caches."""
    return worker.total_blocks // _SHARE


def keepers(prefix: Prefix, leases: Iterable[Lease]) -> list[Lease]:
    """The workers that are to have it. By rendezvous hashing: when one comes or goes, only what it has moves.

    `leases`: of the pool.
    """
    able = [lease for lease in leases if lease.worker.prefixes and not lease.draining and _has_adapter(lease, prefix)]
    able.sort(key=lambda lease: (-xxh3_64_intdigest(f"{prefix.id}\0{lease.worker.id}".encode()), lease.worker.id))
    return able[: prefix.copies]


def kept_by(worker: WorkerId, prefixes: Iterable[Prefix], leases: Sequence[Lease]) -> list[Prefix]:
    """The prefixes that this worker is to have, the oldest first, as far as there is room for them."""
    mine: list[Prefix] = []
    blocks = 0
    for prefix in sorted(prefixes, key=lambda prefix: (prefix.created, prefix.id)):
        own = next((lease.worker for lease in keepers(prefix, leases) if lease.worker.id == worker), None)
        if own is not None and blocks + (more := len(prefix.tokens) // own.block_size) <= room(own):
            mine.append(prefix)
            blocks += more
    return mine


def prompt(prefix: Prefix, step: int) -> list[int]:
    """Its tokens up to the last of the points where a prompt may resume, and one more: engines compute the last anew.

    `step`: as in `Grid`, here and below.
    """
    whole = len(prefix.tokens) // step * step
    return [*prefix.tokens[:whole], prefix.tokens[-1]]


def parts(tokens: Sequence[int], step: int) -> Iterator[list[int]]:
    """Prompts that end with this one of `prompt`: each one longer, and what is before it is cached by then."""
    part = max(1, _PART // step) * step
    for end in range(part, len(tokens) - 1, part):
        yield [*tokens[: end + 1]]
    yield [*tokens]


def _has_adapter(lease: Lease, prefix: Prefix) -> bool:
    return prefix.adapter is None or version_of(prefix.adapter, lease.worker.adapters) is not None


def version_of(adapter: str, versions: Iterable[str]) -> str | None:
    """The one of these (`Adapter.versioned`) that is a version of the adapter."""
    return next((one for one in versions if one.rpartition("@")[0] == adapter), None)
