"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.parts import Results, Target, table

TITLE = "KV in tiers"
TARGETS: dict[str, dict[str, Target]] = {
    "loading": {
        "vllm_evicted_ttft_ratio": (0.1, False),
        "vllm_restart_ttft_ratio": (0.1, False),
        "wrong_answers": (0, False),
        "p99_itl_ratio": (1.1, False),
        "answers_compared": None,
        "computed_ttft_ms": None,
        "host_ttft_ms": None,
        "disk_ttft_ms": None,
        "p99_itl_cached_ms": None,
        "p99_itl_loaded_ms": None,
    },
    "encryption": {
        "encrypted_load_ratio": (1.2, False),
        "plain_store_ttft_ms": None,
        "encrypted_store_ttft_ms": None,
        "close_mb_per_s": None,
        "open_mb_per_s": None,
        "encrypted_close_mb_per_s": None,
        "encrypted_open_mb_per_s": None,
    },
    "restart": {
        "rolling_restart_hit_ratio": (0.95, True),
        "rolling_restart_hit_ratio_without": None,
        "hit_rate_before": None,
        "hit_rate_before_without": None,
    },
    "peers": {
        "peers_ttft_ratio": None,
        "peers_answer_ratio": None,
    },
    "oracle": {
        "way_to_oracle": (0.8, True),
        "way_to_oracle_5_gb_s": None,
    },
    "cost": {
        "no_tier_cost": (1.05, False),
    },
}


def tables(results: Results) -> Iterator[Table]:
    if turns := results.get("itl_turns"):
        result_table = table(
            "p99 between two tokens, ms, in each turn", "prompts cached", "prompts loaded", "ratio", left=[]
        )
        for cached_ms, loaded_ms in turns:
            result_table.add_row(f"{cached_ms:.1f}", f"{loaded_ms:.1f}", f"{loaded_ms / cached_ms:.2f}")
        yield result_table
    if rows := results.get("simulated"):
        columns = ("best router, no store", "ours, no store", "ours, as dear as here", "ours, 5 GB/s", "bound")
        result_table = table("Simulated mean TTFT, s", "trace", "workers", "blocks", *columns, left=["trace"])
        for row in rows:
            keys = ("best", "without", "way_to_oracle", "way_to_oracle_5_gb_s", "bound")
            figures = (f"{row[key]:.2f}" for key in keys)
            result_table.add_row(row["trace"].partition("_")[0], str(row["workers"]), str(row["cache"]), *figures)
        yield result_table
    if rates := results.get("hits_over_time"):
        result_table = table("Hit rate of each round, through a rolling restart", "", *rates, left=[""])
        for number, row in enumerate(zip(*rates.values(), strict=True)):
            result_table.add_row(str(number + 1), *(f"{rate:.2f}" for rate in row))
        yield result_table


def plot(results: Results, path: Path) -> None:
    figure = Figure(figsize=(11, 4), layout="constrained")
    left_axes, right_axes = figure.subplots(1, 2)
    if times := results.get("ttft_s"):
        left_axes.boxplot([[1000 * s for s in of] for of in times.values()], tick_labels=[*times])
        left_axes.set(
            yscale="log",
            ylabel="time to the first token, ms",
            title="A prompt of 992 tokens on vLLM, by where its KV is",
        )
    for name, rates in (results.get("hits_over_time") or {}).items():
        right_axes.plot(range(1, len(rates) + 1), rates, marker="o", label=name)
        right_axes.set(ylim=(0, 1), xlabel="round", ylabel="hit rate", title="Through a rolling restart")
        right_axes.legend()
    figure.savefig(path)
