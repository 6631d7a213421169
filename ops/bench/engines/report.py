"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.parts import Results, Target, table

TITLE = "Engines"
TARGETS: dict[str, dict[str, Target]] = {
    "sglang": {
        "sglang_throughput_ratio": (0.97, True),
        "sglang_own_ms_p50": (10, False),
        "sglang_tokens_per_s": None,
        "sglang_own_server_tokens_per_s": None,
        "sglang_other_cores": None,
        "sglang_own_in_ms_p50": None,
        "sglang_own_out_ms_p50": None,
        "sglang_own_burst_ms_p50": None,
    },
    "apart": {
        "sglang_pd_equal": (1.0, True),
    },
    "contract": {
        "contract_failed": (0, False),
    },
    "lora": {
        "lora_overhead_ratio": (0.97, True),
        "lora_tokens_per_s": None,
        "lora_own_server_tokens_per_s": None,
        "lora_other_cores": None,
    },
    "load": {
        "lora_fleet_load_s": (1, False),
    },
    "swap": {
        "swap_stale": (0, False),
    },
    "migrate": {
        "migrate_engines_close": (1.0, True),
        "migrate_equal_texts": None,
        "migrate_worst_gap": None,
    },
}
_COUNTED = ("sglang_pd", "swap")


def tables(results: Results) -> Iterator[Table]:
    for key in ("sglang", "lora"):
        if f"{key}_pairs" in results:
            yield _pairs(key, results[f"{key}_pairs"])
    if "contract" in results:
        result_table = table("The contract suite", "engine", "passed", "failed", "skipped", left=["engine"])
        for engine, counts in results["contract"].items():
            failures = counts.get("failure", 0) + counts.get("error", 0)
            result_table.add_row(engine, str(counts.get("passed", 0)), str(failures), str(counts.get("skipped", 0)))
        yield result_table
    for key in _COUNTED:
        if key in results:
            yield _counts(key, results[key])
    if "migrate" in results:
        result_table = table(
            "Answers that went on elsewhere", "from one engine", "answers", "equal", left=["from one engine"]
        )
        for way, counts in results["migrate"].items():
            result_table.add_row(way, str(counts["answers"]), str(counts["equal"]))
        yield result_table


def _pairs(key: str, rows: list[dict[str, float]]) -> Table:
    result_table = table(
        f"{key}: tokens/s in each pair", "behind us", "own server", "ratio", "cores of others", "stolen", left=[]
    )
    for row in rows:
        result_table.add_row(
            f"{row['ours']:.1f}", f"{row['theirs']:.1f}", f"{row['ratio']:.3f}",
            f"{row['other_cores']:.2f}", f"{row['stolen_cores']:.2f}",
        )  # fmt: skip
    return result_table


def _counts(title: str, found: dict[str, Any]) -> Table:
    result_table = table(title, "measured", "value")
    for name, value in found.items():
        result_table.add_row(name, str(value))
    return result_table


def plot(results: Results, path: Path) -> None:
    """The ratio of each pair, and the time of each load of an adapter."""
    figure = Figure(figsize=(12, 4), layout="tight")
    left_axes, right_axes = figure.subplots(1, 2)
    for key, colour in (("sglang", "tab:green"), ("lora", "tab:blue")):
        if rows := results.get(f"{key}_pairs"):
            left_axes.plot([row["ratio"] for row in rows], "o-", color=colour, label=key)
            left_axes.legend()
    left_axes.axhline(0.97, color="gray", linestyle=":")
    left_axes.set(title="tokens/s behind us over the engine's own server", xlabel="pair")
    right_axes.plot(results.get("lora_fleet_loads_s", []), "o-", color="tab:green")
    right_axes.axhline(1, color="gray", linestyle=":")
    right_axes.set(title="an adapter on four workers, without the engine's time", xlabel="call", ylabel="s")
    figure.savefig(path, dpi=90)
