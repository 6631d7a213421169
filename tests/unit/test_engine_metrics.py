"""Metrics of engines of several processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import Metric

from workers.library_metrics import engine_metrics, merged


def counted(name: str, times: int, **labels: str) -> list[Metric]:
    registry = CollectorRegistry()
    Counter(name, "How many.", list(labels), registry=registry).labels(**labels).inc(times)
    return list(registry.collect())


def values(metrics: list[Metric]) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("rank", "")): sample.value
        for metric in metrics
        for sample in metric.samples
        if sample.name.endswith("_total")
    }


def test_a_metric_of_two_processes_is_one_family_and_equal_series_are_added_up() -> None:
    metrics = [*counted("engine:steps", 2, rank="0"), *counted("engine:steps", 3, rank="0")]
    (family,) = merged([*metrics, *counted("engine:steps", 5, rank="1")])
    assert values([family]) == {("engine:steps_total", "0"): 5, ("engine:steps_total", "1"): 5}


def test_metrics_of_api_replicas_are_not_the_workers() -> None:
    registry = CollectorRegistry()
    Gauge("xylem_requests_held", "Ours.", registry=registry)
    assert list(merged(registry.collect())) == []


def test_what_another_process_counts_is_found_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's schedulers do so. This process keeps its own counts in memory, as it started without the folder."""
    code = "from prometheus_client import Counter; Counter('engine_elsewhere', 'x').inc(7)"
    env = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    metrics = list(engine_metrics())
    assert values(metrics)["engine_elsewhere_total", ""] == 7
    assert len(metrics) == len({metric.name for metric in metrics})
    assert "process_cpu_seconds" in {metric.name for metric in metrics}
