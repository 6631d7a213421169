"""The metrics of batches: of the whole deployment, the same at each API replica."""

from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from app.batch.records import LIVE, Batch
from app.messages.lease import Lease


def batch_metrics(
    batches: Sequence[Batch], totals: dict[str, int], leases: Sequence[Lease], now: float
) -> Iterable[Metric]:
    lines = CounterMetricFamily(
        "xylem_batch_lines", "Lines of batches that have ended, by outcome.", labels=["outcome"]
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
    live = [batch for batch in batches if batch.status in LIVE]
    by_status = GaugeMetricFamily("xylem_batches", "Batches that have not ended, by status.", labels=["status"])
    for status in LIVE:
        by_status.add_metric([status], Counter(batch.status for batch in live)[status])
    yield by_status
    yield GaugeMetricFamily(
        "xylem_batch_backlog_lines", "Lines that have no result yet.", sum(batch.left for batch in live)
    )
    ages = (now - batch.order.created for batch in live)
    yield GaugeMetricFamily(
        "xylem_batch_oldest_seconds", "Age of the oldest batch that has not ended.", max(ages, default=0)
    )
    yield GaugeMetricFamily(
        "xylem_batch_capacity_share",
        "Share of all engines' seats that aside requests (of batches, and flex) have or wait for.",
        sum(lease.load.aside for lease in leases)
        / max(1, sum(lease.worker.max_running * lease.worker.ranks for lease in leases)),
    )
