"""Targets, tables, one figure."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table
from ops.bench.route.simulation import DEFAULT, ORACLE, OURS, RIVALS

TITLE = "Routing (TTFT ratios: below 1 is better; the worst over traces, sizes and caches)"
TARGETS = targets("""
    decision: decision_p50_ms <= 1, decision_p99_ms <= 3, bytes_per_block <= 80
    events: events_per_s >= 50000
    simulation: ttft_mean_vs_dynamo <= 1, ttft_mean_vs_best <= 0.95, ttft_p99_vs_best <= 1, way_to_oracle >= 1/3
                no_reuse_loss <= 0.02
    prefix: cached_share_ample >= 0.83, cached_share_tight_vs_dynamo >= 1.3
""")
_NAMES = {OURS: "xylem kv", **{r: r.replace("dynamo_cost", "dynamo") for r in (DEFAULT, *RIVALS)}}


def tables(results: Results) -> Iterator[Table]:
    if "by_workers_ms" in results:
        curves = {key.split("_")[1]: results[key] for key in ("by_workers_ms", "by_blocks_ms")}
        yield table(
            "One decision alone, median ms: by workers (2,000 blocks), by prompt blocks (16 workers)",
            *(f"{n:,} {what}" for what, curve in curves.items() for n in curve),
            rows=[[f"{ms:.2f}" for curve in curves.values() for ms in curve.values()]],
        )
    if "simulated" in results:
        names = ("trace", "workers", "blocks", *_NAMES.values(), "oracle", "vs best", "p99", "way")
        rows = map(_simulated, results["simulated"], results["compared"])
        yield table("Simulated TTFT, seconds: mean (p99)", *names, rows=rows, left=["trace"])
    if "replayed" in results:
        names = ("policy", "TTFT mean simulated", "measured", "p99 simulated", "measured", "hits measured")
        rows = (_replayed(policy, r["simulated"], r["measured"]) for policy, r in results["replayed"].items())
        title = "The same trace, simulated and through the whole system (seconds of the trace)"
        yield table(title, *names, rows=rows, left=())
    if "prefix" in results:
        title = "40 groups of 10 requests, 2,000 shared and 50 own words, 4 mock workers, 8 connections"
        rows = (
            [space, name, f"{r['cached_share']:.3f}"]
            + [f"{r[k]:.0f}" for k in ("ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms")]
            for space, systems in results["prefix"].items()
            for name, r in systems.items()
        )
        yield table(title, "KV space", "system", "cached share", "TTFT mean ms", "p50", "p99", rows=rows)


def _simulated(row: dict[str, Any], c: dict[str, float]) -> Iterator[object]:
    yield from (row["trace"].partition("_")[0], row["workers"], row["cache"])
    for policy in (*_NAMES, ORACLE):
        of = row["policies"][policy]
        yield f"{of['ttft_mean']:.2f} ({of['ttft_p99']:.1f})"
    yield from (f"{c['vs_best']:.3f}", f"{c['p99_vs_best']:.3f}", f"{c['way']:.2f}")


def _replayed(policy: str, s: dict[str, float], m: dict[str, float]) -> list[str]:
    figures = (s["ttft_mean"], m["ttft_mean"], s["ttft_p99"], m["ttft_p99"], m["hit"])
    return [policy, *(f"{x:.2f}" for x in figures)]


def plot(results: Results, path: Path) -> None:
    with panels(path, (18, 9), 2, 3) as all_axes:
        axes = iter(all_axes)
        if "by_workers_ms" in results:
            _curve(next(axes), results["by_workers_ms"], "workers, prompts of 2,000 blocks")
            _curve(next(axes), results["by_blocks_ms"], "blocks of the prompt, 16 workers")
            _paced(next(axes), np.sort(results["paced_ms"]))
        if "simulated" in results:
            _over_oracle(next(axes), results["simulated"])
        if "replayed" in results:
            runs = results["replayed"]
            kinds = {kind: [r[kind]["ttft_mean"] for r in runs.values()] for kind in ("simulated", "measured")}
            title = "the trace through the whole system, 4 workers"
            _bars(next(axes), kinds, list(runs), ylabel="mean TTFT, s of the trace", title=title)
        if "prefix" in results:
            spaces = results["prefix"].items()
            shares = {f"{space} KV space": [r["cached_share"] for r in of.values()] for space, of in spaces}
            title = "shared prefixes, the most there is: 0.858"
            axis = next(axes)
            _bars(axis, shares, list(results["prefix"]["ample"]), ylabel="cached share of prompt tokens", title=title)
            axis.tick_params(axis="x", rotation=20)
        for axis in axes:
            axis.axis("off")


def _curve(axis: Axes, points: Mapping[int, float], label: str) -> None:
    axis.plot(list(points), list(points.values()), "o-")
    axis.set(xscale="log", xlabel=label, ylabel="ms a decision", ylim=(0, None))


def _paced(axis: Axes, took: Any) -> None:
    axis.plot(took, np.linspace(0, 100, len(took)))
    title = "200 decisions/s, 16 workers, 1,000,000 blocks"
    axis.set(xlabel="ms", ylabel="% of decisions", title=title, xlim=(0, 5))


def _over_oracle(axis: Axes, rows: list[dict[str, Any]]) -> None:
    names = [f"{r['trace'][:4]} {r['workers']}x{r['cache']}" for r in rows]
    for policy, name in _NAMES.items():
        ours = [r["policies"][policy]["ttft_mean"] / r["policies"][ORACLE]["ttft_mean"] for r in rows]
        axis.plot(names, ours, "o-" if policy == OURS else ".--", label=name)
    axis.set(yscale="log", ylabel="mean TTFT over the oracle's", title="simulated")
    axis.tick_params(axis="x", rotation=60)
    axis.legend(fontsize=7)


def _bars(axis: Axes, groups: Mapping[str, list[float]], names: list[str], **labels: str) -> None:
    """Bars of each group side by side."""
    for i, (label, heights) in enumerate(groups.items()):
        axis.bar(np.arange(len(heights)) + 0.4 * i, heights, 0.4, label=label)
    axis.set_xticks(np.arange(len(names)) + 0.2, names)
    axis.set(**labels)
    axis.legend()
