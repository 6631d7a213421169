"""Metrics of what waits to be written to SQL: of the whole deployment, the same at each API replica."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric


def usage_metrics(waiting: int) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "xylem_usage_waiting",
        "Entries of records of usage, one or more in each, that no `xylem usage write` has written to SQL yet.",
        waiting,
    )
