"""The cost for Redis of the API replicas' looks for dead workers."""

from pathlib import Path
from typing import Any

import uvloop

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.liveness import LivenessWatch
from app.dispatch.answering.token_inbox import TokenInbox
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.models.adapter_table import AdapterTable
from app.ids import ApiId
from app.intervals import Intervals
from app.store import Wire
from ops.bench.parts import Say
from ops.bench.scale.fleet import KEYS, POOL, POOLS, blocks, fill
from ops.bench.scale.placing import WORKERS, redis_cpu
from ops.bench.size import Size
from ops.bench.systems import connected, valkey

REPLICAS = (1, 10, 100)


def watching(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """The share of a core that Redis needs, by workers and replicas."""
    with valkey(directory) as port:
        shares = uvloop.run(_watching(port, size, say))
    return {
        "watch_redis_share_1000x100": shares[max(shares)],
        "watching": [{"workers": w, "replicas": r, "share": share} for (w, r), share in shares.items()],
    }


async def _watching(port: int, size: Size, say: Say) -> dict[tuple[int, int], float]:
    shares = {}
    async with connected(port) as (client, wire):
        for workers in size.of(WORKERS, WORKERS, (16,)):
            say(f"watching: {workers:,} workers")
            await fill(client, wire, workers, blocks(size))
            for replicas in size.of(REPLICAS, REPLICAS, (4,)):
                say(f"watching: {workers:,} workers, {replicas} replicas")
                shares[workers, replicas] = await _share(client, replicas, size.of(180, 60, 2))
    return shares


async def _share(client: Any, replicas: int, looks: int) -> float:
    """All replicas look one after the other, each so often; in a deployment they do so each `look_s`.

    The looks are told that this is so: now and then, by their clock, one reads all leases; with 1,000 workers each does
    every fifteen seconds, so that is the least that is measured. Before each turn the last turn's claim ends, as it
    would by Redis' clock.
    """
    look_s = Intervals().look_s
    wires = [Wire(client) for _ in range(replicas)]
    watches = [_watch(wire, ApiId(f"api{i}")) for i, wire in enumerate(wires)]
    try:
        for watch in watches:  # not measured: what a replica reads at its start
            await watch.look(0.0)
        cpu_s = await redis_cpu(client)
        for i in range(looks):
            await client.unlink(KEYS.watched(POOL))
            for watch in watches:
                await watch.look((i + 1) * look_s)
        cpu_s = await redis_cpu(client) - cpu_s
    finally:
        for wire in wires:
            wire.close()
    return cpu_s / looks / look_s


def _watch(wire: Wire, api: ApiId) -> LivenessWatch:
    fleet = FleetReader(wire, KEYS, POOLS, 1024)
    dispatcher = Dispatcher(wire, KEYS, api, fleet, POOLS)
    inbox = TokenInbox(wire, KEYS, api, dispatcher.deliver, dispatcher.worker_lost)
    return LivenessWatch(wire, KEYS, dispatcher, inbox, fleet, POOLS, AdapterTable(wire, KEYS, {}))
