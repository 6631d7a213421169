"""A benchmark's results: tables, a plot, and the line of JSON."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from rich.table import Table

from ops.bench.load import Line
from ops.bench.panels import panels
from ops.bench.parts import table
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
    rows = []
    for f in findings:
        floor = "≥" if f.at_least else "≤"
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: "[yellow]not measured[/]"}[f.met]
        other = "" if f.compare in ("growth", "ours") else f"{f.rival} {_spread(f.theirs)}"
        comparison = _spread(f.pairs) if f.value is not None else "-"
        result = f"{comparison}\n[dim]{f.compare}[/]"
        rows.append((f"{f.title}\n[dim]{f.unit}[/]", _spread(f.ours), other, result, f"{floor} {f.target:g}", mark))
    title = "Medians (lowest to highest); ratios and differences are medians over pairs of runs"
    return table(title, "measured", "xylem", "other", "compared", "target", "", rows=rows)


def context_table(lines: Sequence[Line]) -> Table:
    """Further figures of the runs, medians per load and system; CPU in percent of one core."""
    names = ("load", "system", "runs", "req/s", "tok/s", "prompt", "TTFT p50", "ITL mean", "events/token")
    more = ("events/read", "api %", "workers %", "redis %", "client %")
    rows = []
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line["measure"], line["system"]), []).append(line)
    for (measure, system), runs in groups.items():
        streams = [r for r in runs if r["stream"]]
        of_all = ([r[key] for r in runs] for key in ("req_s", "tok_s", "prompt_tokens_mean"))
        of_streams = (
            [r["ttft_ms"]["p50"] for r in streams], [(r["itl_ms"] or {}).get("mean") for r in streams],
            [r["sse_events"] / r["out_tokens"] for r in streams], [r["events_per_read"] for r in streams],
        )  # fmt: skip
        cores = ([_core_percent(r, part) for r in runs] for part in ("api", "workers", "redis"))
        client = [100 * r["loadgen_cpu_s"] / r["wall_s"] for r in runs]
        rows.append((measure, system, len(runs), *map(_mid, (*of_all, *of_streams, *cores, client))))
    return table("The runs themselves (medians)", *names, *more, rows=rows, left=("load", "system"))


def plot(findings: Sequence[Finding], title: str, path: Path) -> None:
    """One panel per finding: medians as bars, every repetition as a dot."""
    rows = max(1, -(-len(findings) // _COLUMNS))
    with panels(path, (4 * _COLUMNS, 3.6 * rows), rows, _COLUMNS, title) as axes:
        for axis in axes[len(findings) :]:
            axis.axis("off")
        for axis, f in zip(axes, findings, strict=False):
            _panel(axis, f)


def _panel(axis: Axes, f: Finding) -> None:
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
