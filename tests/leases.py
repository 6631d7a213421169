"""Leases of workers that tests make up."""

from typing import Any

from msgspec.structs import replace

from app.messages import Lease, Load, Worker


def changed(lease: Lease, **fields: Any) -> Lease:
    """With other values in any fields of it, of its worker and of its load."""
    worker = {name: fields.pop(name) for name in Worker.__struct_fields__ if name in fields}
    load = {name: fields.pop(name) for name in Load.__struct_fields__ if name in fields}
    return replace(lease, worker=replace(lease.worker, **worker), load=replace(lease.load, **load), **fields)
