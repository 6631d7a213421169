"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.parts import Results, Target, table

TITLE = "Today's models: routed right, called right, seen right"
TARGETS: dict[str, dict[str, Target]] = {
    "index": {
        "index_wrong": (0, False),
    },
    "hybrid": {
        "hybrid_ttft_ratio": (0.6, False),
        "hybrid_cached_share": (0.9, True),
    },
    "templates": {
        "templates_wrong": (0, False),
    },
    "readback": {
        "readback_wrong": (0, False),
        "families_with_tools": (40, True),
    },
    "pictures": {
        "pictures_refused": (0, False),
        "picture_families": (12, True),
        "picture_tokens_wrong": (0, False),
        "picture_learn_ms": (700, False),
    },
    "blocks": {
        "index_bytes_per_block": (60, False),
    },
    "events": {
        "events_per_s_ratio": (0.95, True),
    },
    "placing": {
        "place_redis_ms_1000_ratio": (1.1, False),
    },
    "cpu": {
        "request_cpu_ratio": (1.02, False),
    },
}
_PAIRS = {"events_pairs": "events", "placing_pairs": "placing", "cpu_pairs": "cpu"}


def tables(results: Results) -> Iterator[Table]:
    if "index" in results:
        result_table = table("Prompts whose cached tokens were foretold", "model", "groups", "prompts", "evicted",
                             "wrong", left=("model", "groups"))  # fmt: skip
        for row in results["index"]:
            result_table.add_row(*map(str, row))
        for model, why in results["not_indexed"].items():
            result_table.add_row(model, why, "-", "-", "-")
        yield result_table
    if "hybrid" in results:
        names = "an uncached prompt, s", "TTFT before, s", "now", "cached before", "now", "one engine"
        result_table = table("Two workers with hybrid models, room for 7 of 12 system prompts each", "model", *names,
                             left=("model",))  # fmt: skip
        for row in results["hybrid"]:
            seconds = row["uncached_s"], row["ttft_s"]["before"], row["ttft_s"]["after"]
            shares = row["shares"]["before"], row["shares"]["after"], row["one_engine"]
            result_table.add_row(row["model"], *(f"{x:.2f}" for x in seconds), *(f"{x:.3f}" for x in shares))
        yield result_table
    if "retention" in results:
        result_table = table("Cached share by what an engine keeps", "model", "interval", "blocks", "conversations",
                             "shared beginnings", left=("model",))  # fmt: skip
        for row in results["retention"]:
            setting = "null" if row["setting"] is None else str(row["setting"])
            result_table.add_row(
                row["model"], setting, str(row["blocks"]), f"{row['turns']:.2f}", f"{row['shared']:.2f}"
            )
        yield result_table


def plot(results: Results, path: Path) -> None:
    """The pairs, from which the ratios are."""
    figure = Figure(figsize=(8, 4), layout="tight")
    axes = figure.subplots()
    for key, name in _PAIRS.items():
        if key in results:
            axes.plot(sorted(results[key]), "o-", label=name)
    axes.axhline(1.0, color="grey", linewidth=0.5)
    axes.set(xlabel="pair, in order", ylabel="over the commit before", title=TITLE)
    if set(_PAIRS) & set(results):
        axes.legend()
    figure.savefig(path, dpi=90)
