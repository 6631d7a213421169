"""Metrics that workers report: those of all workers at each API replica, and a worker's own at its own port."""

from collections.abc import Iterable
from typing import Literal, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from app.messages.lease import EngineState, Worker, WorkerMetric

WorkerState = Literal["ready", "draining", "changing", "paused", "asleep"]
STATES: tuple[WorkerState, ...] = get_args(WorkerState)
_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


def families(reports: Iterable[tuple[Worker, list[WorkerMetric]]]) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
    by_name: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for worker, metrics in reports:
        for metric in metrics:
            family = by_name.get(metric.name)
            if family is None:
                family = _FAMILIES[metric.kind](metric.name, metric.meaning, labels=["pool", "worker"])
                by_name[metric.name] = family
            family.add_metric([worker.pool, worker.id], metric.value)
    return by_name.values()


def worker_state(state: EngineState, *, draining: bool) -> WorkerState:
    """`draining`: it takes no requests, for whatever reason."""
    if state.asleep:
        return "asleep"
    if state.paused:
        return "paused"
    if state.changing:
        return "changing"
    return "draining" if draining else "ready"
