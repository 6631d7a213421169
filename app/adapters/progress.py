"""Says how far a change of the wanted adapters has got, by what workers say of themselves. Pure."""

from collections.abc import Collection, Sequence

from msgspec import Struct

from app.ids import PoolId, WorkerId
from app.messages.lease import Lease
from app.messages.wanted import Adapter


class Progress(Struct, frozen=True):
    workers: list[WorkerId]  # that answer with it
    failed: dict[WorkerId, str]  # why another one doesn't
    missing: dict[PoolId, int]  # how many more a pool that takes adapters is to have: they don't live, or failed
    done: bool


def progress(adapter: Adapter, leases: Sequence[Lease], pools: Collection[PoolId]) -> Progress:
    """`pools`: that are to load it.

    Done when nobody has another version, and enough workers have this one: as many as it says of each pool, unless so
    few live there that could. Those are missing then, and load it when they live.
    """
    name = adapter.versioned
    able = [lease for lease in leases if lease.worker.max_adapters and lease.worker.pool in pools]
    have = [lease for lease in able if name in lease.worker.adapters]
    failures = {lease.worker.id: lease.adapters.failed[name] for lease in able if name in lease.adapters.failed}
    missing: dict[PoolId, int] = {}
    enough = not others(adapter.name, leases, name)
    for pool in pools:
        having = sum(lease.worker.pool == pool for lease in have)
        could = sum(lease.worker.pool == pool and _may_have(lease, name) for lease in able)
        enough = enough and having >= min(adapter.min_workers, could)
        members = [lease for lease in leases if lease.worker.pool == pool]
        takes_none = members and not any(lease.worker.max_adapters for lease in members)
        if having < adapter.min_workers and not takes_none:
            missing[pool] = adapter.min_workers - having
    return Progress([lease.worker.id for lease in have], failures, missing, enough)


def others(adapter: str, leases: Sequence[Lease], version: str = "") -> list[WorkerId]:
    """Workers that answer with another version of it."""
    return [
        lease.worker.id
        for lease in leases
        if any(name != version and name.rpartition("@")[0] == adapter for name in lease.worker.adapters)
    ]


def _may_have(lease: Lease, name: str) -> bool:
    return name in lease.worker.adapters or not (lease.draining or name in lease.adapters.failed)
