"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.parts import Results, Target, table

TITLE = "Overload"
TARGETS: dict[str, dict[str, Target]] = {
    "load": {
        "goodput_ratio": None,
        "refused_p99_ms": None,
        "recovery_s": None,
        "failed": (0, False),
        "idle_mb": None,
        "idle_cpu_share": None,
        "slow_reader_mb": None,
    },
    "worst": {
        "worst_gap_ms": (100, False),
        "redis_growth_mb": (64, False),
        "uncharged_cpu_s": (0.05, False),
    },
}
_DEAREST = 12  # rows of the table of refused requests


def tables(results: Results) -> Iterator[Table]:
    if "phases" in results:
        names = ("load", "offered/s", "good/s", "late", "refused", "failed", "refused after p50 ms", "p99 ms")
        result_table = table("Loads, in times the capacity", *names, left=())
        for row in results["phases"]:
            result_table.add_row(*(f"{value:.4g}" for value in row.values()))
        yield result_table
    if "pauses" in results:
        result_table = table("The longest pause of another tenant's stream, ms", "without", "beside", "more", left=())
        for run in results["pauses"]:
            without, beside = 1000 * run["without"], 1000 * run["beside"]
            result_table.add_row(f"{without:.1f}", f"{beside:.1f}", f"{beside - without:.1f}")
        yield result_table
    if "refused" in results:
        names = ("row", "content", "bytes", "answer", "CPU ms")
        result_table = table("CPU of all processes for a refused request: the dearest", *names, left=("row", "content"))
        for one in sorted(results["refused"], key=lambda one: -one["cpu_s"])[:_DEAREST]:
            result_table.add_row(
                one["row"], one["kind"], f"{one['size']:,}", one["answer"], f"{1000 * one['cpu_s']:.1f}"
            )
        yield result_table


def plot(results: Results, path: Path) -> None:
    """Good answers a second of each load, and what the refused requests cost."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    left_axes, right_axes = figure.subplots(1, 2)
    phases = results.get("phases", [])
    left_axes.bar(
        range(len(phases)), [row["good_per_s"] for row in phases], tick_label=[f"{row['load']:g}x" for row in phases]
    )
    left_axes.set(title="good answers a second", xlabel="load, in times the capacity")
    right_axes.plot(sorted(1000 * one["cpu_s"] for one in results.get("refused", [])), ".")
    right_axes.set(title="a refused request", ylabel="CPU of all processes, ms", xlabel="requests, the dearest last")
    figure.savefig(path, dpi=90)
