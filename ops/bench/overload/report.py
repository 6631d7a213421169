"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table

TITLE = "Overload"
TARGETS = targets("""
    load: goodput_ratio, refused_p99_ms, recovery_s, failed <= 0, idle_mb, idle_cpu_share, slow_reader_mb
    worst: worst_gap_ms <= 100, redis_growth_mb <= 64, uncharged_cpu_s <= 0.05
""")
_DEAREST = 12  # rows of the table of refused requests


def tables(results: Results) -> Iterator[Table]:
    if "phases" in results:
        names = ("load", "offered/s", "good/s", "late", "refused", "failed", "refused after p50 ms", "p99 ms")
        rows = ([f"{value:.4g}" for value in row.values()] for row in results["phases"])
        yield table("Loads, in times the capacity", *names, rows=rows, left=())
    if "pauses" in results:
        pauses = [(1000 * run["without"], 1000 * run["beside"]) for run in results["pauses"]]
        rows = ([f"{without:.1f}", f"{beside:.1f}", f"{beside - without:.1f}"] for without, beside in pauses)
        title = "The longest pause of another tenant's stream, ms"
        yield table(title, "without", "beside", "more", rows=rows, left=())
    if "refused" in results:
        dearest = sorted(results["refused"], key=lambda one: -one["cpu_s"])[:_DEAREST]
        rows = (
            [one["row"], one["kind"], f"{one['size']:,}", one["answer"], f"{1000 * one['cpu_s']:.1f}"]
            for one in dearest
        )
        names = ("row", "content", "bytes", "answer", "CPU ms")
        yield table("CPU of all processes for a refused request: the dearest", *names, rows=rows, left=names[:2])


def plot(results: Results, path: Path) -> None:
    """Good answers a second of each load, and what the refused requests cost."""
    with panels(path, (11, 4), columns=2) as (left_axes, right_axes):
        phases = results.get("phases", [])
        labels = [f"{row['load']:g}x" for row in phases]
        left_axes.bar(range(len(phases)), [row["good_per_s"] for row in phases], tick_label=labels)
        left_axes.set(title="good answers a second", xlabel="load, in times the capacity")
        right_axes.plot(sorted(1000 * one["cpu_s"] for one in results.get("refused", [])), ".")
        right_axes.set(
            title="a refused request", ylabel="CPU of all processes, ms", xlabel="requests, the dearest last"
        )
