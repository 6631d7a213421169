"""The fleet as this process knows it, read from Redis for all who watch together."""

import asyncio
import time
from collections.abc import Collection, Sequence

from app.api.console.answer_types import Fleet, LostWorker
from app.api.console.fleet_view import fleet_view
from app.api.state import ApiState
from app.dispatch.fleet.loads import entries
from app.dispatch.observing.timeline_types import RecentEnded, RecentRunning
from app.dispatch.placing.presence_record import held_everywhere
from app.ids import WorkerId
from app.kv.prefix_index import packed
from app.messages.lease import Lease
from app.store import clock

_EVERY_S, _EVERY_S_PER_WORKER = 0.9, 0.01  # at most: of many workers, reading and showing them takes longer
_RECENT = 20  # requests
_LOST_S = 60  # how long a dead worker is shown


class FleetFeed:
    """Reads nothing while nobody watches."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._due = 0.0  # monotonic
        self._seen: Fleet | None = None

    async def now(self, state: ApiState) -> Fleet:
        """The fleet as of about a second ago. Raises: StoreDown."""
        async with self._reading:
            if self._seen is None or time.monotonic() >= self._due:
                self._seen = await _read(state)
                workers = sum(len(pool["workers"]) for pool in self._seen["pools"])
                self._due = time.monotonic() + max(_EVERY_S, _EVERY_S_PER_WORKER * workers)
            return self._seen


async def _read(state: ApiState) -> Fleet:
    """Raises: StoreDown."""
    pools = list(state.pools)
    leases = await state.fleet.live(pools)
    groups = await state.wire.execute([("HVALS", state.keys.loads(pool)) for pool in pools])
    models = sorted({pool.model for pool in state.pools.values()})
    services = await state.wire.execute([("HGETALL", state.keys.service(model)) for model in models])
    now = clock.now()
    waiting = {
        model: held_everywhere(dict(zip(flat[::2], flat[1::2], strict=True)), now)
        for model, flat in zip(models, services, strict=True)
    }
    replies = await state.wire.execute(
        [("ZRANGEBYSCORE", state.keys.lost(pool), now - _LOST_S, "+inf", "WITHSCORES") for pool in pools]
    )
    alive = {lease.worker.id for lease in leases}
    deaths = {pool: _lost(flat, alive) for pool, flat in zip(pools, replies, strict=True)}
    loads = {place: entry for pool in groups for group in pool for place, entry in entries(group).items()}
    return {
        "at": round(now, 1),
        "replica": state.dispatcher.api,
        "in_flight": len(state.dispatcher.in_flight),
        "held": state.dispatcher.placer.held,
        "pools": fleet_view(
            state.pools, state.fleet.grids, leases, loads, await _cached(state, leases), waiting=waiting, deaths=deaths
        ),
        "requests": [_with_model(state, one) for one in state.dispatcher.timelines.recent(_RECENT)],
    }


def _lost(flat: Sequence[bytes], alive: Collection[WorkerId]) -> list[LostWorker]:
    """`flat`: worker, time, worker, time, …. One that stood still may be back."""
    found_dead = [(WorkerId(worker.decode()), float(at)) for worker, at in zip(flat[::2], flat[1::2], strict=True)]
    return [{"id": worker, "at": round(at, 1)} for worker, at in found_dead if worker not in alive]


def _with_model(state: ApiState, request: RecentRunning | RecentEnded) -> RecentRunning | RecentEnded:
    """One that runs has a pool only."""
    return {**request, "model": state.pools[request["pool"]].model} if "pool" in request else request


async def _cached(state: ApiState, leases: list[Lease]) -> dict[int, int] | None:
    """Number of blocks that each KV cache has; None: the index is away."""
    numbers_by_pool = {
        pool: [n for lease in leases if lease.worker.pool == pool for n in lease.caches] for pool in state.pools
    }
    numbers_by_pool = {pool: numbers for pool, numbers in numbers_by_pool.items() if numbers}
    commands = [
        ("HMGET", state.keys.cached(pool)[1], *map(packed, numbers)) for pool, numbers in numbers_by_pool.items()
    ]
    if not commands:
        return {}
    counts = await state.fleet.index.ask(commands)
    if counts is None:
        return None
    pairs = zip(numbers_by_pool.values(), counts, strict=True)
    return {n: int(count or 0) for numbers, pool_counts in pairs for n, count in zip(numbers, pool_counts, strict=True)}
