"""Workers, leases and places that tests make up."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from app.dispatch.fleet.pool_fleet import PoolView
from app.ids import place_id
from app.messages.lease import Lease, Load, Worker
from app.routing.candidates import Candidate, Matches, PlaceLimits

_USUAL = {
    "pool": "pool", "role": "both", "host": "host", "pid": 1, "block_size": 16, "total_blocks": 1000, "max_running": 8,
    "max_model_len": 4096,
}  # fmt: skip
_LIMITS = PlaceLimits(max_queued=4)


def worker(name: str = "w", **fields: Any) -> Worker:
    """A worker, with other values in any fields."""
    return Worker(**{"id": name} | _USUAL | fields)


def changed(lease: Lease, **fields: Any) -> Lease:
    """A lease with other values in any fields of it, of its worker and of its load."""
    of_worker = {name: fields.pop(name) for name in Worker.__struct_fields__ if name in fields}
    of_load = {name: fields.pop(name) for name in Load.__struct_fields__ if name in fields}
    return replace(lease, worker=replace(lease.worker, **of_worker), load=replace(lease.load, **of_load), **fields)


def lease(name: str = "w", **fields: Any) -> Lease:
    """A lease, with other values in any fields of it, of its worker and of its load."""
    return changed(Lease(worker(name)), **fields)


def candidate(name: str = "w", limits: PlaceLimits = _LIMITS, **fields: Any) -> Candidate:
    """A place, with other values in any fields of it, and of its lease."""
    own = {name: fields.pop(name) for name in Candidate.__struct_fields__ if name in fields}
    return Candidate(lease(name, **fields), limits, **own)


def pool_view(candidates: Sequence[Candidate]) -> PoolView:
    """A view of these places, of which none has any block of a prompt."""
    indices = {place_id(c.lease.worker.id, c.rank): i for i, c in enumerate(candidates)}
    return PoolView(list(candidates), [Matches()] * 8, indices, lately=bool(candidates))
