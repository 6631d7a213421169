"""The common parts of all panels of the dashboards, and queries that come again and again.

`$__rate_interval` is Grafana's: four times the time between two scrapes. `$pool` and `$model` are chosen on top of a
dashboard.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

WORKER = "{{pool}} {{worker}}"  # the legend of a series of a worker
OF_POOL, OF_MODEL = 'pool=~"$pool"', 'model=~"$model"'
RATE = "[$__rate_interval]"
ZERO = "or vector(0)"

Unit = Literal["short", "reqps", "ops", "s", "percentunit", "bytes", "Bps"]


class Query(NamedTuple):
    expr: str
    legend: str = ""  # of each series: `{{label}}` is the value of a label


class Panel(NamedTuple):
    title: str
    unit: Unit
    queries: tuple[Query, ...]
    description: str = ""


Series = Mapping[str, str]  # queries by their legends


def panel(title: str, unit: Unit, series: Series, description: str = "") -> Panel:
    return Panel(title, unit, tuple(Query(expr, legend) for legend, expr in series.items()), description)


class Dashboard(NamedTuple):
    name: str  # of its file, and of its address in Grafana
    title: str
    variables: tuple[Literal["pool", "model"], ...]
    panels: tuple[Panel, ...]


def selected(metric: str, *matchers: str) -> str:
    """The series of a metric that these matchers choose."""
    return f"{metric}{{{', '.join(matchers)}}}" if matchers else metric


def rate(metric: str, *matchers: str) -> str:
    return f"rate({selected(metric, *matchers)}{RATE})"


def per_worker(metric: str) -> str:
    """A gauge of workers. Each API replica tells it, and the worker's own port: once is enough."""
    return f"max by (pool, worker) ({selected(metric, OF_POOL)})"


def worker_rate(counter: str) -> str:
    """The same of a counter, a second."""
    return f"max by (pool, worker) ({rate(counter, OF_POOL)})"


def sum_by(labels: str, expr: str) -> str:
    return f"sum by ({labels}) ({expr})"


def by_pool(of_workers: str) -> str:
    return sum_by("pool", of_workers)


def quantiles(histogram: str, by: str, *matchers: str, of: tuple[float, ...] = (0.5, 0.95, 0.99)) -> Series:
    buckets = sum_by(f"le, {by}", rate(f"{histogram}_bucket", *matchers))
    return {f"{{{{{by}}}}} p{q * 100:g}": f"histogram_quantile({q:g}, {buckets})" for q in of}


def mean(histogram: str, by: str, *matchers: str) -> str:
    """The mean of what was observed lately."""
    total, count = (sum_by(by, rate(f"{histogram}_{part}", *matchers)) for part in ("sum", "count"))
    return f"{total} / {count}"


def ratio(part: str, whole: str) -> str:
    """Nothing where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def or_zero(expr: str) -> str:
    """The query, or 0 where it has no series: nothing of it exists on a fleet where all is well."""
    return f"{expr} {ZERO}"
