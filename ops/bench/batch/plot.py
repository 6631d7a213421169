"""Plots: online requests with and without a batch, the batch alone, and memory during a large file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Results = Mapping[str, Any]


def plot(results: Results, path: Path) -> None:
    """A row of plots for each part that was run."""
    parts = [part for part in ("beside", "alone", "intake") if part in results]
    figure = Figure(figsize=(15, 4.5 * max(1, len(parts))), layout="tight")
    for part, (left_axes, right_axes) in zip(
        parts, figure.subplots(len(parts), 2, squeeze=False) if parts else (), strict=True
    ):
        if part == "beside":
            _tail(left_axes, results, "ttft_ms", "time to the first token, ms")
            _tail(right_axes, results, "gaps_ms", "between two tokens, ms")
        else:
            (_alone if part == "alone" else _memory)(left_axes, results)
            right_axes.set_visible(False)
    figure.savefig(path, dpi=90)


def _tail(axis: Axes, results: Results, what: str, label: str) -> None:
    """Plots, for each time, the share of requests, or gaps, that took longer."""
    for beside, color in ((False, "tab:gray"), (True, "tab:green")):
        values = np.sort([x for row in results["beside"] if row["batch"] is beside for x in row[what]])
        longer = 1 - np.arange(len(values)) / len(values)
        axis.plot(values, longer, color=color, label="with a batch" if beside else "without")
        axis.axvline(float(np.percentile(values, 99)), color=color, linestyle=":")
    axis.axhline(0.01, color="lightgray", linewidth=0.8)
    ratio = results["online_ttft_p99_ratio" if what == "ttft_ms" else "online_itl_p99_ratio"]
    axis.set(xlabel=label, ylabel="share that took longer", yscale="log", title=f"p99: {ratio:.2f} times")
    axis.set_ylim(1e-4 if what == "gaps_ms" else 1e-3, 1.1)
    axis.legend()


def _alone(axis: Axes, results: Results) -> None:
    for i, row in enumerate(results["alone"]):
        sides = ((row["theirs"]["seconds"], "LLM.generate", "tab:gray"), (row["ours"]["seconds"], "batch", "tab:green"))
        for j, (seconds, label, color) in enumerate(sides):
            axis.bar(i + 0.4 * j, row["tokens"] / seconds, 0.4, color=color, label=label if not i else None)
    axis.set_xticks(
        [i + 0.2 for i in range(len(results["alone"]))], [f"pair {i + 1}" for i in range(len(results["alone"]))]
    )
    axis.set(ylabel="tokens/s, real vLLM", title=f"alone: {results['throughput_ratio']:.3f} of LLM.generate")
    axis.legend(loc="lower right")


def _memory(axis: Axes, results: Results) -> None:
    figures = results["intake"]
    names = {"api": "API", "batch": "batch worker", "redis": "Redis"}
    for name, label in names.items():
        at, values = zip(*figures["series"][name], strict=True)
        axis.plot(at, np.array(values) / (2**20 if name == "redis" else 1), label=label)
    for name, at in figures["marks"].items():
        axis.axvline(at, color="lightgray", linestyle=":")
        axis.text(at, axis.get_ylim()[1], f" {name}", rotation=90, va="top", fontsize=7)
    axis.set(xlabel="seconds from the upload's beginning", ylabel="MiB more than before")
    axis.set_title(f"{figures['file_mb']:.0f} MB, {figures['lines']:,} lines; {figures['run_lines']:,} computed")
    axis.legend()
