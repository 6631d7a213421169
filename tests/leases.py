"""Leases of workers that tests make up."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from app.dispatch.fleet.pool_fleet import PoolView
from app.ids import place_id
from app.messages.lease import Lease, Load, Worker
from app.routing.candidates import Candidate, Matches


def changed(lease: Lease, **fields: Any) -> Lease:
    """A lease with other values in any fields of it, of its worker and of its load."""
    worker = {name: fields.pop(name) for name in Worker.__struct_fields__ if name in fields}
    load = {name: fields.pop(name) for name in Load.__struct_fields__ if name in fields}
    return replace(lease, worker=replace(lease.worker, **worker), load=replace(lease.load, **load), **fields)


def pool_view(candidates: Sequence[Candidate]) -> PoolView:
    """A view of these places, of which none has any block of a prompt."""
    indices = {place_id(c.lease.worker.id, c.rank): i for i, c in enumerate(candidates)}
    return PoolView(list(candidates), [Matches()] * 8, indices, lately=bool(candidates))
