"""Targets, tables, one figure."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.parts import Results, Target, table
from ops.bench.route.simulation import DEFAULT, ORACLE, OURS, RIVALS

TITLE = "Routing (TTFT ratios: below 1 is better; the worst over traces, sizes and caches)"
TARGETS: dict[str, dict[str, Target]] = {
    "decision": {
        "decision_p50_ms": (1.0, False),
        "decision_p99_ms": (3.0, False),
        "bytes_per_block": (80, False),
    },
    "events": {
        "events_per_s": (50_000, True),
    },
    "simulation": {
        "ttft_mean_vs_dynamo": (1.0, False),
        "ttft_mean_vs_best": (0.95, False),
        "ttft_p99_vs_best": (1.0, False),
        "way_to_oracle": (1 / 3, True),
        "no_reuse_loss": (0.02, False),
    },
    "prefix": {
        "cached_share_ample": (0.83, True),
        "cached_share_tight_vs_dynamo": (1.3, True),
    },
}
_NAMES = {OURS: "xylem kv", **{r: r.replace("dynamo_cost", "dynamo") for r in (DEFAULT, *RIVALS)}}


def tables(results: Results) -> Iterator[Table]:
    if "by_workers_ms" in results:
        keys = ("by_workers_ms", "by_blocks_ms")
        result_table = table(
            "One decision alone, median ms: by workers (2,000 blocks), by prompt blocks (16 workers)",
            *(f"{n:,} {key.split('_')[1]}" for key in keys for n in results[key]),
        )
        result_table.add_row(*(f"{ms:.2f}" for key in keys for ms in results[key].values()))
        yield result_table
    if "simulated" in results:
        yield _simulated(results)
    if "replayed" in results:
        names = ("policy", "TTFT mean simulated", "measured", "p99 simulated", "measured", "hits measured")
        result_table = table(
            "The same trace, simulated and through the whole system (seconds of the trace)", *names, left=()
        )
        for policy, r in results["replayed"].items():
            s, m = r["simulated"], r["measured"]
            figures = (s["ttft_mean"], m["ttft_mean"], s["ttft_p99"], m["ttft_p99"], m["hit"])
            result_table.add_row(policy, *(f"{x:.2f}" for x in figures))
        yield result_table
    if "prefix" in results:
        title = "40 groups of 10 requests, 2,000 shared and 50 own words, 4 mock workers, 8 connections"
        result_table = table(title, "KV space", "system", "cached share", "TTFT mean ms", "p50", "p99")
        for space, systems in results["prefix"].items():
            for name, r in systems.items():
                times = (f"{r[k]:.0f}" for k in ("ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms"))
                result_table.add_row(space, name, f"{r['cached_share']:.3f}", *times)
        yield result_table


def _simulated(results: Results) -> Table:
    names = ("trace", "workers", "blocks", *_NAMES.values(), "oracle", "vs best", "p99", "way")
    result_table = table("Simulated TTFT, seconds: mean (p99)", *names, left=["trace"])
    for row, c in zip(results["simulated"], results["compared"], strict=True):
        cells = [row["policies"][p] for p in (*_NAMES, ORACLE)]
        result_table.add_row(
            row["trace"].partition("_")[0], str(row["workers"]), str(row["cache"]),
            *(f"{x['ttft_mean']:.2f} ({x['ttft_p99']:.1f})" for x in cells),
            f"{c['vs_best']:.3f}", f"{c['p99_vs_best']:.3f}", f"{c['way']:.2f}",
        )  # fmt: skip
    return result_table


def plot(results: Results, path: Path) -> None:
    figure = Figure(figsize=(18, 9), layout="tight")
    axes = iter(figure.subplots(2, 3).flat)
    if "by_workers_ms" in results:
        _curve(next(axes), results["by_workers_ms"], "workers, prompts of 2,000 blocks")
        _curve(next(axes), results["by_blocks_ms"], "blocks of the prompt, 16 workers")
        axis = next(axes)
        took = np.sort(results["paced_ms"])
        axis.plot(took, np.linspace(0, 100, len(took)))
        axis.set(
            xlabel="ms", ylabel="% of decisions", title="200 decisions/s, 16 workers, 1,000,000 blocks", xlim=(0, 5)
        )
    if "simulated" in results:
        axis, rows = next(axes), results["simulated"]
        names = [f"{r['trace'][:4]} {r['workers']}x{r['cache']}" for r in rows]
        for policy, name in _NAMES.items():
            ours = [r["policies"][policy]["ttft_mean"] / r["policies"][ORACLE]["ttft_mean"] for r in rows]
            axis.plot(names, ours, "o-" if policy == OURS else ".--", label=name)
        axis.set(yscale="log", ylabel="mean TTFT over the oracle's", title="simulated")
        axis.tick_params(axis="x", rotation=60)
        axis.legend(fontsize=7)
    if "replayed" in results:
        axis, policies = next(axes), list(results["replayed"])
        for i, kind in enumerate(("simulated", "measured")):
            means = [results["replayed"][p][kind]["ttft_mean"] for p in policies]
            axis.bar(np.arange(len(policies)) + 0.4 * i, means, 0.4, label=kind)
        axis.set_xticks(np.arange(len(policies)) + 0.2, policies)
        axis.set(ylabel="mean TTFT, s of the trace", title="the trace through the whole system, 4 workers")
        axis.legend()
    if "prefix" in results:
        axis = next(axes)
        for i, (space, systems) in enumerate(results["prefix"].items()):
            shares = [r["cached_share"] for r in systems.values()]
            axis.bar(np.arange(len(shares)) + 0.4 * i, shares, 0.4, label=f"{space} KV space")
        names = list(results["prefix"]["ample"])
        axis.set_xticks(np.arange(len(names)) + 0.2, names, rotation=20)
        axis.set(ylabel="cached share of prompt tokens", title="shared prefixes, the most there is: 0.858")
        axis.legend()
    for axis in axes:
        axis.axis("off")
    figure.savefig(path, dpi=90)


def _curve(axis: Axes, points: Mapping[int, float], label: str) -> None:
    axis.plot(list(points), list(points.values()), "o-")
    axis.set(xscale="log", xlabel=label, ylabel="ms a decision", ylim=(0, None))
