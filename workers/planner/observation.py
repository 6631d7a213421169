"""Reads the pools that are planned, with their workers, from Redis."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import msgspec

from app.batch.batch_store import BatchStore
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.fleet.loads import ENTRY, entries
from app.ids import PoolId, place_id
from app.keys import Keys
from app.messages.lease import Lease
from app.metric_families import worker_state
from app.planner.desired import Desired, decode_desired
from app.planner.observed import SeenPool, SeenWorker, Speed
from app.pools.schema import Pool
from app.routing.cost import TOKENS_PER_S
from app.store import Wire
from app.telemetry import logger

log = logger(__name__)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Speed).decode


class Observation:
    def __init__(self, wire: Wire, keys: Keys, pools: Mapping[PoolId, Pool], max_queued: int) -> None:
        """`pools`: those that are planned."""
        self._wire, self._keys, self._pools = wire, keys, pools
        self._fleet = FleetReader(wire, keys, pools, max_queued)
        self._batches = BatchStore(wire, keys, 0)
        self.leases: dict[PoolId, list[Lease]] = {}  # as read last
        self.desired: dict[PoolId, Desired] = {}  # the same

    async def read(self) -> list[SeenPool]:
        """Raises: StoreDown."""
        names, keys = list(self._pools), self._keys
        leases = await self._fleet.live(names)
        batches = {batch.model for batch in await self._batches.live() if batch.left > 0 and not batch.paused}
        *replies, flat = await self._wire.execute(
            [
                *(("HVALS", keys.loads(name)) for name in names),
                *(("GET", keys.desired(name)) for name in names),
                ("HGETALL", keys.planner_speeds()),
            ]
        )
        loads, raw_desired = replies[: len(names)], replies[len(names) :]
        before = {PoolId(name.decode()): _speed(raw) for name, raw in zip(flat[::2], flat[1::2], strict=True)}
        self.desired = {
            name: desired_pool for name, raw in zip(names, raw_desired, strict=True) if (desired_pool := _desired(raw))
        }
        self.leases = {name: [lease for lease in leases if lease.worker.pool == name] for name in names}
        seen_pools = []
        for name, groups in zip(names, loads, strict=True):
            speed = measured(self.leases[name], before.get(name))
            requests = {place: ENTRY.unpack(entry) for group in groups for place, entry in entries(group).items()}
            workers = [seen_worker(lease, requests) for lease in self.leases[name]]
            target = self.desired[name].workers if name in self.desired else sum(not w.draining for w in workers)
            pool = self._pools[name]
            aside = pool.model in batches or any(lease.load.aside for lease in self.leases[name])
            gpus = pool.scale.gpus if pool.scale is not None else 0
            seen_pools.append(
                SeenPool(name, pool.model, pool.role, speed, workers=workers, wanted=target, gpus=gpus, aside=aside)
            )
        await self._wire.execute(
            [("HSET", keys.planner_speeds(), pool.pool, _encode(pool.speed)) for pool in seen_pools]
        )
        return seen_pools


def seen_worker(lease: Lease, reservations: Mapping[bytes, Sequence[float]]) -> SeenWorker:
    """`reservations`: the entries of `loads:<pool>` by place."""
    worker = lease.worker
    places = [reservations.get(place_id(worker.id, rank).encode()) for rank in range(worker.ranks)]
    requests = sum(int(place[0] + place[5]) for place in places if place is not None)
    draining = worker_state(lease.state, draining=lease.draining) == "draining"
    reused_tokens_per_s = lease.speeds.reused_tokens_per_s * worker.ranks
    return SeenWorker(worker.id, not lease.draining, draining, requests, reused_tokens_per_s)


def measured(leases: Sequence[Lease], before: Speed | None) -> Speed:
    """The mean speed of the workers that have measured it. A pool without such keeps its speed from `before`."""
    old = before or Speed(0.0, 0.0, 0.0, 0, 0.0)

    def mean(of: Callable[[Lease], float], otherwise: float) -> float:
        return fmean(values) if (values := [value for lease in leases if (value := of(lease)) > 0]) else otherwise

    step_s = mean(lambda lease: lease.speeds.step_s, old.step_s)
    # Of short prompts it isn't measured: they take little of the time, and any speed will do.
    assumed_speed = old.prefill_tokens_per_s or (TOKENS_PER_S if step_s else 0.0)
    return Speed(
        mean(lambda lease: lease.speeds.prefill_tokens_per_s * lease.worker.ranks, assumed_speed),
        step_s,
        mean(lambda lease: lease.speeds.request_step_s / lease.worker.ranks, old.request_step_s),
        round(mean(lambda lease: lease.worker.max_running * lease.worker.ranks, old.seats)),
        mean(lambda lease: lease.worker.start_s, old.start_s),
    )


def _desired(raw: bytes | None) -> Desired | None:
    try:
        return None if raw is None else decode_desired(raw)
    except msgspec.DecodeError as exc:
        log.warning("desired_not_understood", error=str(exc))
        return None


def _speed(raw: bytes) -> Speed | None:
    try:
        return _decode(raw)
    except msgspec.DecodeError as exc:
        log.warning("speed_not_understood", error=str(exc))
        return None
