"""The metrics of the whole deployment: the same at each API replica, read from Redis for each request to /metrics."""

from collections.abc import Iterable, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, Collector

from app.api.operations.batch_metrics import batch_metrics
from app.api.state import ApiState
from app.messages import Lease, WorkerMetric, decode_worker_metrics
from app.store import clock
from app.telemetry import logger

log = logger(__name__)
_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class DeploymentMetrics(Collector):
    """The metrics that were read last."""

    def __init__(self) -> None:
        self._metrics: list[Metric] = []
        REGISTRY.register(self)

    async def read(self, state: ApiState) -> None:
        """Raises: StoreDown; then there are no metrics, rather than old ones."""
        self._metrics = []
        live, totals = await state.batch_store.live(), await state.batch_store.totals()
        leases = await state.fleet.live(list(state.pools))
        raw_metrics = await state.wire.execute([("GET", state.keys.metrics(lease.worker.id)) for lease in leases])
        self._metrics = [*batch_metrics(live, totals, leases, clock.now()), *worker_metrics(leases, raw_metrics)]

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def worker_metrics(leases: Sequence[Lease], raw_metrics: Sequence[bytes | None]) -> Iterable[Metric]:
    """`raw_metrics`: each worker's metrics, as msgpack; None for a worker that has ended meanwhile."""
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for lease, raw in zip(leases, raw_metrics, strict=True):
        for metric in _decoded(raw):
            family = families.get(metric.name)
            if family is None:
                family = _FAMILIES[metric.kind](metric.name, metric.meaning, labels=["pool", "worker"])
                families[metric.name] = family
            family.add_metric([lease.worker.pool, lease.worker.id], metric.value)
    return families.values()


def _decoded(raw: bytes | None) -> list[WorkerMetric]:
    try:
        return [] if raw is None else decode_worker_metrics(raw)
    except msgspec.DecodeError as exc:
        log.warning("worker_metrics_not_understood", error=str(exc))
        return []
