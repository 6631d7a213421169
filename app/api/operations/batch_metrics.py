"""What /metrics says of batches: of the whole deployment, the same at each API replica, read when it is asked for."""

from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, Collector

from app.api.state import ApiState
from app.batch.records import LIVE, Batch
from app.messages import Lease
from app.store import clock


class BatchMetrics(Collector):
    """What was read last."""

    def __init__(self) -> None:
        self._metrics: list[Metric] = []
        REGISTRY.register(self)

    async def read(self, state: ApiState) -> None:
        """Raises: StoreDown; then there are none, rather than old ones."""
        self._metrics = []
        live, totals = await state.batch_store.live(), await state.batch_store.totals()
        leases = await state.fleet.live(list(state.pools))
        self._metrics = list(metrics(live, totals, leases, clock.now()))

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def metrics(batches: Sequence[Batch], totals: dict[str, int], leases: Sequence[Lease], now: float) -> Iterable[Metric]:
    lines = CounterMetricFamily(
        "xylem_batch_lines", "Lines of batches that were asked, by outcome.", labels=["outcome"]
    )
    for outcome in ("completed", "failed"):
        lines.add_metric([outcome], totals.get(outcome, 0))
    yield lines
    tokens = CounterMetricFamily(
        "xylem_batch_tokens", "Tokens of batches: prompt, cached (of these), completion.", labels=["kind"]
    )
    for kind in ("prompt", "cached", "completion"):
        tokens.add_metric([kind], totals.get(kind, 0))
    yield tokens
    going_on = [batch for batch in batches if batch.status in LIVE]
    standing = GaugeMetricFamily("xylem_batches", "Batches that have not ended, by status.", labels=["status"])
    for status in LIVE:
        standing.add_metric([status], Counter(batch.status for batch in going_on)[status])
    yield standing
    yield GaugeMetricFamily(
        "xylem_batch_backlog_lines", "Lines that have no result yet.", sum(batch.left for batch in going_on)
    )
    ages = (now - batch.order.created for batch in going_on)
    yield GaugeMetricFamily(
        "xylem_batch_oldest_seconds", "Age of the oldest batch that has not ended.", max(ages, default=0)
    )
    yield GaugeMetricFamily(
        "xylem_batch_capacity_share",
        "Share of all engines' seats that requests have, or wait for, that give way to others: batches and flex.",
        sum(lease.aside for lease in leases) / max(1, sum(lease.max_running * lease.ranks for lease in leases)),
    )
    worked = CounterMetricFamily(
        "xylem_worker_busy_seconds", "Seconds in which an engine had anything to do.", labels=["pool", "worker"]
    )
    for lease in leases:
        worked.add_metric([lease.pool, lease.worker], lease.worked_s)
    yield worked
