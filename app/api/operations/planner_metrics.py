"""The planner's decisions as metrics: the same at each API replica."""

from collections.abc import Iterable, Mapping
from typing import get_args

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from app.ids import PoolId
from app.planner.desired import Desired
from app.planner.plan import Reason


def planner_metrics(targets: Mapping[PoolId, Desired]) -> Iterable[Metric]:
    """`targets`: of the pools that a planner has just decided about."""
    workers = GaugeMetricFamily("xylem_planner_workers", "Workers that the planner wants in a pool.", labels=["pool"])
    arrivals = GaugeMetricFamily(
        "xylem_planner_expected_per_second", "Requests a second that the planner expects in a pool.", labels=["pool"]
    )
    reasons = GaugeMetricFamily(
        "xylem_planner_reason", "1: why the planner wants so many; 0: other reasons.", labels=["pool", "reason"]
    )
    for pool, each in targets.items():
        workers.add_metric([pool], each.workers)
        arrivals.add_metric([pool], each.arrivals_per_s)
        for reason in get_args(Reason):
            reasons.add_metric([pool, reason], each.reason == reason)
    return workers, arrivals, reasons
