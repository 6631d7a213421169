"""The fleet as the console and `xylem top` show it: pools, their workers, and what these hold. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import asdict

from app.api.console.answer_types import FleetPool, FleetWorker, LostWorker, Reserved
from app.dispatch.fleet.loads import ENTRY, NOTHING
from app.ids import PoolId, place_id
from app.kv.groups import grid_of, why_by_load
from app.messages.lease import Grid, Lease
from app.metric_families import worker_state
from app.pools.schema import Pool


def fleet_view(
    pools: Mapping[PoolId, Pool],
    grids: Mapping[PoolId, Grid],
    leases: Sequence[Lease],
    loads: Mapping[bytes, bytes],
    cache_sizes: Mapping[int, int] | None,
    *,
    waiting: Mapping[str, int],
    deaths: Mapping[PoolId, Sequence[LostWorker]] = MappingProxyType({}),
) -> list[FleetPool]:
    """`grids`: as `FleetReader` has them. `loads`: what is reserved, by place.

    `cache_sizes`: blocks in the prefix index, by KV cache; None: it is away. `waiting`: for room, by model.
    """
    return [
        {
            "pool": name,
            "model": pool.model,
            "engine": pool.engine,
            "role": pool.role,
            "task": pool.task,
            "held": waiting.get(pool.model, 0),
            "workers": sorted(
                (_worker(lease, grids[name], loads, cache_sizes) for lease in leases if lease.worker.pool == name),
                key=lambda worker: str(worker["id"]),
            ),
            "lost": list(deaths.get(name, ())),
        }
        for name, pool in pools.items()
    ]


def _worker(
    lease: Lease, usual: Grid, loads: Mapping[bytes, bytes], cache_sizes: Mapping[int, int] | None
) -> FleetWorker:
    worker, load, ranks = lease.worker, lease.load, lease.worker.ranks
    has_all = worker.kv_events and grid_of(worker).everywhere  # else the index has points only
    return {
        "id": worker.id,
        "host": worker.host,
        "engine": f"{worker.engine} {worker.engine_version}".strip(),
        "state": worker_state(lease.state, draining=lease.draining),
        "weights": lease.state.weights,
        "ranks": ranks,
        "adapters": list(worker.adapters),
        "seats": worker.max_running * ranks,
        "running": load.running,
        "waiting": load.waiting,
        "aside": load.aside,
        "block_size": worker.block_size,
        "blocks": {
            "total": worker.total_blocks * ranks,
            "held": load.used_blocks,
            "lent": load.lent_blocks,
            "cached": sum(cache_sizes.get(n, 0) for n in lease.caches) if cache_sizes is not None and has_all else None,
        },
        "by_load": why_by_load(lease, usual),
        "reserved": _reserved(lease, loads),
        "speeds": asdict(lease.speeds),
    }


def _reserved(lease: Lease, loads: Mapping[bytes, bytes]) -> Reserved:
    """The requests that were placed there and have not ended, as routing counts them, of all its ranks."""
    sums = [0] * 7
    for rank in range(lease.worker.ranks):
        entry = loads.get(place_id(lease.worker.id, rank).encode(), NOTHING)
        sums = [a + b for a, b in zip(sums, ENTRY.unpack(entry)[:7], strict=True)]
    requests, blocks, tokens, waiting, pulls, aside, _aside_blocks = sums
    return {
        "requests": requests + aside,
        "blocks": blocks,
        "without_first_token": waiting,
        "tokens_to_compute": tokens,
        "blocks_to_pull": pulls,
    }
