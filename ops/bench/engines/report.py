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
        made = table("The contract suite", "engine", "passed", "failed", "skipped", left=["engine"])
        for engine, found in results["contract"].items():
            failed = found.get("failure", 0) + found.get("error", 0)
            made.add_row(engine, str(found.get("passed", 0)), str(failed), str(found.get("skipped", 0)))
        yield made
    for key in _COUNTED:
        if key in results:
            yield _counts(key, results[key])
    if "migrate" in results:
        made = table("Answers that went on elsewhere", "from one engine", "answers", "equal", left=["from one engine"])
        for way, found in results["migrate"].items():
            made.add_row(way, str(found["answers"]), str(found["equal"]))
        yield made


def _pairs(key: str, rows: list[dict[str, float]]) -> Table:
    made = table(
        f"{key}: tokens/s in each pair", "behind us", "own server", "ratio", "cores of others", "stolen", left=[]
    )
    for row in rows:
        made.add_row(
            f"{row['ours']:.1f}", f"{row['theirs']:.1f}", f"{row['ratio']:.3f}",
            f"{row['other_cores']:.2f}", f"{row['stolen_cores']:.2f}",
        )  # fmt: skip
    return made


def _counts(title: str, found: dict[str, Any]) -> Table:
    made = table(title, "measured", "value")
    for name, value in found.items():
        made.add_row(name, str(value))
    return made


def plot(results: Results, path: Path) -> None:
    """The ratio of each pair, and the time of each load of an adapter."""
    figure = Figure(figsize=(12, 4), layout="tight")
    left, right = figure.subplots(1, 2)
    for key, colour in (("sglang", "tab:green"), ("lora", "tab:blue")):
        if rows := results.get(f"{key}_pairs"):
            left.plot([row["ratio"] for row in rows], "o-", color=colour, label=key)
            left.legend()
    left.axhline(0.97, color="gray", linestyle=":")
    left.set(title="tokens/s behind us over the engine's own server", xlabel="pair")
    right.plot(results.get("lora_fleet_loads_s", []), "o-", color="tab:green")
    right.axhline(1, color="gray", linestyle=":")
    right.set(title="an adapter on four workers, without the engine's time", xlabel="call", ylabel="s")
    figure.savefig(path, dpi=90)
