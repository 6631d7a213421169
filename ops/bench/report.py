"""A benchmark's results: tables, a plot, and the line of JSON."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.load import Line
from ops.bench.stats import Finding

_COLUMNS = 4  # panels in a row
FIGURES = {  # by phase
    "fast": (
        "api_cpu_per_request_ratio",
        "worker_cpu_ms_per_request",
        "fleet_cpu_per_request_ratio",
        "requests_per_s_ratio",
        "fleet_cpu_per_token_ratio",
        "api_cpu_per_token_saturated_ratio",
        "long_prompt_cpu_ratio",
        "ttft_p50_delta_ms",
        "rss_growth_mb",
    ),
    "paced": ("api_cpu_per_token_ratio",),
    "vllm": ("vllm_throughput_ratio", "vllm_ttft_p50_delta_ms", "vllm_own_ms_p50"),
}


def findings_table(findings: Iterable[Finding]) -> Table:
    table = Table(title="Medians (lowest to highest); ratios and differences are medians over pairs of runs")
    table.add_column("measured")
    for column in ("xylem", "other", "compared", "target", ""):
        table.add_column(column, justify="right")
    for f in findings:
        floor = "≥" if f.at_least else "≤"
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: "[yellow]not measured[/]"}[f.met]
        other = "" if f.compare in ("growth", "ours") else f"{f.rival} {_spread(f.theirs)}"
        comparison = _spread(f.pairs) if f.value is not None else "-"
        table.add_row(
            f"{f.title}\n[dim]{f.unit}[/]", _spread(f.ours), other, f"{comparison}\n[dim]{f.compare}[/]",
            f"{floor} {f.target:g}", mark,
        )  # fmt: skip
    return table


def context_table(lines: Sequence[Line]) -> Table:
    """Further figures of the runs, medians per load and system; CPU in percent of one core."""
    table = Table(title="The runs themselves (medians)")
    names = (
        "load",
        "system",
        "runs",
        "req/s",
        "tok/s",
        "prompt",
        "TTFT p50",
        "ITL mean",
        "events/token",
        "events/read",
    )
    for name in (*names, "api %", "workers %", "redis %", "client %"):
        table.add_column(name, justify="left" if name in ("load", "system") else "right")
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line["measure"], line["system"]), []).append(line)
    for (measure, system), runs in groups.items():
        streams = [r for r in runs if r["stream"]]
        table.add_row(
            measure, system, str(len(runs)),
            _mid(r["req_s"] for r in runs), _mid(r["tok_s"] for r in runs), _mid(r["prompt_tokens_mean"] for r in runs),
            _mid(r["ttft_ms"]["p50"] for r in streams), _mid((r["itl_ms"] or {}).get("mean") for r in streams),
            _mid(r["sse_events"] / r["out_tokens"] for r in streams), _mid(r["events_per_read"] for r in streams),
            *(_mid(_core_percent(r, part) for r in runs) for part in ("api", "workers", "redis")),
            _mid(100 * r["loadgen_cpu_s"] / r["wall_s"] for r in runs),
        )  # fmt: skip
    return table


def plot(findings: Sequence[Finding], title: str, path: Path) -> None:
    """One panel per finding: medians as bars, every repetition as a dot."""
    rows = max(1, -(-len(findings) // _COLUMNS))
    figure = Figure(figsize=(4 * _COLUMNS, 3.6 * rows), layout="tight")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False)
    for axis in axes.flat[len(findings) :]:
        axis.axis("off")
    for axis, f in zip(axes.flat, findings, strict=False):
        if f.compare == "growth":
            axis.plot(range(len(f.ours)), f.ours, marker="o")
            axis.set_ylim(0, 1.2 * max(f.ours, default=1))
            axis.set_xlabel("tenths of the requests, after a warm-up")
        else:
            sides = [(name, values) for name, values in (("xylem", f.ours), (f.rival, f.theirs)) if values]
            for name, values in sides:
                axis.bar(name, median(values), color="tab:green" if name == "xylem" else "tab:gray")
                axis.plot([name] * len(values), values, "k.", alpha=0.5)
        result = "not measured" if f.value is None else f"{f.compare} {f.value:.3g}, target {f.target:g}"
        axis.set_title(f"{f.title}\n{result}", fontsize=8)
        axis.set_ylabel(f.unit, fontsize=8)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def _core_percent(line: Line, part: str) -> float | None:
    usage = line.get("cpu", {}).get(part)
    return None if usage is None else 100 * usage["cpu_s"] / line["wall_s"]


def _mid(values: Iterable[float | None]) -> str:
    numbers = [v for v in values if v is not None]
    return f"{median(numbers):,.4g}" if numbers else ""


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{median(values):.4g} ({min(values):.4g} … {max(values):.4g})"
