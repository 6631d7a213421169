"""The metrics of the whole deployment: the same at each API replica, read from Redis for each request to /metrics."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, Collector

from app.api.operations.batch_metrics import batch_metrics
from app.api.operations.budget_metrics import budget_metrics
from app.api.operations.planner_metrics import planner_metrics
from app.api.operations.usage_metrics import usage_metrics
from app.api.state import ApiState
from app.errors import StoreDown
from app.ids import PoolId
from app.messages.lease import Lease, WorkerMetric, decode_worker_metrics
from app.metric_families import STATES, families, worker_state
from app.planner.desired import Desired, decode_desired
from app.store import Command, clock
from app.telemetry import REDIS_UP, logger

log = logger(__name__)


class DeploymentMetrics(Collector):
    """The metrics that were read last."""

    def __init__(self) -> None:
        self._metrics: list[Metric] = []
        self._reading: asyncio.Task[bytes] | None = None
        REGISTRY.register(self)

    async def shown(self, state: ApiState) -> bytes:
        """All metrics of this process. Whoever asks while they are read gets the same: they cost much, and no key."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._shown(state))
        return await asyncio.shield(self._reading)

    async def _shown(self, state: ApiState) -> bytes:
        await self._read(state)
        return generate_latest()

    async def _read(self, state: ApiState) -> None:
        """Reads the metrics. Without Redis there are none, rather than old ones."""
        self._metrics = []
        try:
            live, totals = await state.batch_store.live(), await state.batch_store.totals()
            leases = await state.fleet.live(list(state.pools))
            raw_metrics = await state.wire.execute([("GET", state.keys.metrics(lease.worker.id)) for lease in leases])
            scaled_pools = [name for name, pool in state.pools.items() if pool.scale is not None]
            raw_desired = await state.wire.execute_each([("GET", state.keys.desired(pool)) for pool in scaled_pools])
            more: list[Command] = [("XLEN", state.keys.usage()), ("GET", state.keys.budgets())]
            waiting, budgets = await state.wire.execute_each(more)
        except StoreDown:
            REDIS_UP.set(0)
            return
        REDIS_UP.set(1)
        self._metrics = [
            *batch_metrics(live, totals, leases, clock.now()),
            workers_by_state(list(state.pools), leases),
            *worker_metrics(leases, raw_metrics),
            *(usage_metrics(waiting) if isinstance(waiting, int) else ()),
            *(budget_metrics(budgets) if isinstance(budgets, bytes) else ()),
            *planner_metrics(_understood(scaled_pools, raw_desired)),
        ]

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def workers_by_state(pools: Sequence[PoolId], leases: Sequence[Lease]) -> Metric:
    family = GaugeMetricFamily("xylem_workers", "Living workers of a pool, by state.", labels=["pool", "state"])
    counts = Counter((lease.worker.pool, worker_state(lease.state, draining=lease.draining)) for lease in leases)
    for pool in pools:
        for state in STATES:
            family.add_metric([pool, state], counts[pool, state])
    return family


def worker_metrics(leases: Sequence[Lease], raw_metrics: Sequence[bytes | None]) -> Iterable[Metric]:
    """`raw_metrics`: each worker's metrics, as msgpack; None for a worker that has ended meanwhile."""
    return families((lease.worker, _decoded(raw)) for lease, raw in zip(leases, raw_metrics, strict=True))


def _understood(pools: Sequence[PoolId], raws: Sequence[bytes | StoreDown | None]) -> dict[PoolId, Desired]:
    """Planners' decisions, by pool. Pools without one are left out, and those that a user of Redis may not read."""
    decisions = {}
    for pool, raw in zip(pools, raws, strict=True):
        try:
            if isinstance(raw, bytes):
                decisions[pool] = decode_desired(raw)
        except msgspec.DecodeError as exc:
            log.warning("desired_not_understood", error=str(exc))
    return decisions


def _decoded(raw: bytes | None) -> list[WorkerMetric]:
    try:
        return [] if raw is None else decode_worker_metrics(raw)
    except msgspec.DecodeError as exc:
        log.warning("worker_metrics_not_understood", error=str(exc))
        return []
