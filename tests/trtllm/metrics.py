"""The double of MetricsCollector: a gauge in prometheus_client's registry, where the engine's own are."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import REGISTRY, Gauge

from tests.trtllm.generated import Package

NAME = "trtllm_num_generation_requests"


class Collector:
    """The model behind one MetricsCollector."""

    def __init__(self, _package: Package, given: dict[str, Any]) -> None:
        """Raises: ValueError (there is one in this process)."""
        self._labels = given["labels"]
        self._generating = Gauge(NAME, "Number of generation requests", [*self._labels])

    def log_iteration_stats(self, iteration_stats: Mapping[str, Any]) -> None:
        count = iteration_stats["inflightBatchingStats"]["numGenRequests"]
        self._generating.labels(**self._labels).set(count)

    def close(self) -> None:
        REGISTRY.unregister(self._generating)
