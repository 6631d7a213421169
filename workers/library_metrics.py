"""The metrics that libraries keep in this process, and engines in processes of their own: each one once."""

import os
from collections.abc import Iterable, Iterator

from prometheus_client import PROCESS_COLLECTOR, REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.samples import Sample
from prometheus_client.values import MutexValue, ValueClass

_OURS = "xylem_"  # those of API replicas: no worker counts for them
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


def engine_metrics() -> Iterable[Metric]:
    return merged(_found())


def _found() -> Iterator[Metric]:
    """A process keeps its metrics in memory, or, if the variable was set when it started, in the folder."""
    folder = os.environ.get(_FOLDER)
    if folder and os.path.isdir(folder):  # noqa: PTH112 (the collector's own check)
        yield from MultiProcessCollector(None, folder).collect()  # type: ignore[no-untyped-call]
    if ValueClass is MutexValue or not folder:
        yield from REGISTRY.collect()
    else:  # of the process itself nothing is in the folder
        yield from PROCESS_COLLECTOR.collect()


def merged(metrics: Iterable[Metric]) -> Iterable[Metric]:
    """One family of each name; what several processes have counted under the same labels is added up."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], Sample]] = {}
    for metric in metrics:
        if metric.name.startswith(_OURS):
            continue
        family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
        samples = values.setdefault(metric.name, {})
        for sample in metric.samples:
            key = sample.name, frozenset(sample.labels.items())
            earlier_sample = samples.get(key)
            samples[key] = (
                sample if earlier_sample is None else earlier_sample._replace(value=earlier_sample.value + sample.value)
            )
        family.samples = list(samples.values())
    return families.values()
