"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table

TITLE = "KV in tiers"
TARGETS = targets("""
    loading: vllm_evicted_ttft_ratio <= 0.1, vllm_restart_ttft_ratio <= 0.1, wrong_answers <= 0, p99_itl_ratio <= 1.1
             answers_compared, computed_ttft_ms, host_ttft_ms, disk_ttft_ms, p99_itl_cached_ms, p99_itl_loaded_ms
    encryption: encrypted_load_ratio <= 1.2, plain_store_ttft_ms, encrypted_store_ttft_ms, close_mb_per_s
                open_mb_per_s, encrypted_close_mb_per_s, encrypted_open_mb_per_s
    restart: rolling_restart_hit_ratio >= 0.95, rolling_restart_hit_ratio_without, hit_rate_before
             hit_rate_before_without
    peers: peers_ttft_ratio, peers_answer_ratio
    oracle: way_to_oracle >= 0.8, way_to_oracle_5_gb_s
    cost: no_tier_cost <= 1.05
""")
_SIMULATED = {
    "best": "best router, no store", "without": "ours, no store", "way_to_oracle": "ours, as dear as here",
    "way_to_oracle_5_gb_s": "ours, 5 GB/s", "bound": "bound",
}  # fmt: skip


def tables(results: Results) -> Iterator[Table]:
    if turns := results.get("itl_turns"):
        rows = (
            [f"{cached_ms:.1f}", f"{loaded_ms:.1f}", f"{loaded_ms / cached_ms:.2f}"] for cached_ms, loaded_ms in turns
        )
        names = ("prompts cached", "prompts loaded", "ratio")
        yield table("p99 between two tokens, ms, in each turn", *names, rows=rows, left=[])
    if runs := results.get("simulated"):
        rows = (
            [run["trace"].partition("_")[0], str(run["workers"]), str(run["cache"])]
            + [f"{run[key]:.2f}" for key in _SIMULATED]
            for run in runs
        )
        names = ("trace", "workers", "blocks", *_SIMULATED.values())
        yield table("Simulated mean TTFT, s", *names, rows=rows, left=names[:1])
    if rates := results.get("hits_over_time"):
        rounds = enumerate(zip(*rates.values(), strict=True), 1)
        rows = ([str(number), *(f"{rate:.2f}" for rate in row)] for number, row in rounds)
        yield table("Hit rate of each round, through a rolling restart", "", *rates, rows=rows, left=[""])


def plot(results: Results, path: Path) -> None:
    with panels(path, (11, 4), columns=2) as (left_axes, right_axes):
        if times := results.get("ttft_s"):
            left_axes.boxplot([[1000 * s for s in of] for of in times.values()], tick_labels=[*times])
            title = "A prompt of 992 tokens on vLLM, by where its KV is"
            left_axes.set(yscale="log", ylabel="time to the first token, ms", title=title)
        for name, rates in (results.get("hits_over_time") or {}).items():
            right_axes.plot(range(1, len(rates) + 1), rates, marker="o", label=name)
            right_axes.set(ylim=(0, 1), xlabel="round", ylabel="hit rate", title="Through a rolling restart")
            right_axes.legend()
