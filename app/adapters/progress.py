"""How far a change of the wanted adapters has got, by what workers say of themselves. Pure."""

from collections.abc import Collection, Sequence

from msgspec import Struct

from app.ids import PoolId, WorkerId
from app.messages import Adapter, Lease


class Progress(Struct, frozen=True):
    workers: list[WorkerId]  # that answer with it
    failed: dict[WorkerId, str]  # why another one doesn't
    done: bool


def progress(adapter: Adapter, leases: Sequence[Lease], pools: Collection[PoolId]) -> Progress:
    """`pools`: that are to load it.

    Done when nobody has another version, and enough workers have this one: as many as it says of each pool, unless so
    few live there that could.
    """
    name = adapter.versioned
    able = [lease for lease in leases if lease.worker.max_adapters and lease.worker.pool in pools]
    have = [lease for lease in able if name in lease.worker.adapters]
    failed = {lease.worker.id: lease.adapters.failed[name] for lease in able if name in lease.adapters.failed}
    enough = all(
        sum(lease.worker.pool == pool for lease in have)
        >= min(
            adapter.min_workers,
            sum(lease.worker.pool == pool and _may_have(lease, name) for lease in able),
        )
        for pool in pools
    )
    return Progress([lease.worker.id for lease in have], failed, enough and not others(adapter.name, leases, name))


def others(adapter: str, leases: Sequence[Lease], version: str = "") -> list[WorkerId]:
    """Who answers with another version of it."""
    return [
        lease.worker.id
        for lease in leases
        if any(name != version and name.rpartition("@")[0] == adapter for name in lease.worker.adapters)
    ]


def _may_have(lease: Lease, name: str) -> bool:
    return name in lease.worker.adapters or not (lease.draining or name in lease.adapters.failed)
