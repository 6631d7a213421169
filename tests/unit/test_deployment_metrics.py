"""Metrics of workers at /metrics."""

from prometheus_client.metrics_core import Metric

from app.api.operations.deployment_metrics import worker_metrics
from app.messages.lease import WorkerMetric
from app.messages.wire import encode
from tests.leases import lease

LEASES = [lease(name) for name in ("w1", "w2", "w3")]


def shown(*told: bytes | None) -> dict[str, Metric]:
    return {metric.name: metric for metric in worker_metrics(LEASES, told)}


def test_a_metric_that_only_the_workers_know_is_shown_of_each_of_them() -> None:
    reports = [encode([WorkerMetric("new_seconds", "counter", "How long.", float(i))]) for i in range(3)]
    (metric,) = shown(*reports).values()
    assert (metric.name, metric.type, metric.documentation) == ("new_seconds", "counter", "How long.")
    assert [(s.name, s.labels["pool"], s.labels["worker"], s.value) for s in metric.samples] == [
        ("new_seconds_total", "pool", f"w{i + 1}", i) for i in range(3)
    ]


def test_a_worker_that_has_gone_or_is_not_understood_hides_no_other() -> None:
    metric = shown(None, b"\xc1", encode([WorkerMetric("blocks", "gauge", "In use.", 7.0)]))["blocks"]
    assert [(sample.labels["worker"], sample.value) for sample in metric.samples] == [("w3", 7.0)]
