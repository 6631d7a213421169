"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table

TITLE = "Engines"
TARGETS = targets("""
    sglang: sglang_throughput_ratio >= 0.97, sglang_own_ms_p50 <= 10, sglang_tokens_per_s
            sglang_own_server_tokens_per_s, sglang_other_cores, sglang_own_in_ms_p50, sglang_own_out_ms_p50
            sglang_own_burst_ms_p50
    apart: sglang_pd_equal >= 1
    contract: contract_failed <= 0
    lora: lora_overhead_ratio >= 0.97, lora_tokens_per_s, lora_own_server_tokens_per_s, lora_other_cores
    load: lora_fleet_load_s <= 1
    swap: swap_stale <= 0
    migrate: migrate_engines_close >= 1, migrate_equal_texts, migrate_worst_gap
""")
_PAIR = {"ours": ".1f", "theirs": ".1f", "ratio": ".3f", "other_cores": ".2f", "stolen_cores": ".2f"}


def tables(results: Results) -> Iterator[Table]:
    for key in ("sglang", "lora"):
        if pairs := results.get(f"{key}_pairs"):
            names = ("behind us", "own server", "ratio", "cores of others", "stolen")
            rows: Iterator[tuple[object, ...]] = (
                tuple(f"{r[name]:{form}}" for name, form in _PAIR.items()) for r in pairs
            )
            yield table(f"{key}: tokens/s in each pair", *names, rows=rows, left=[])
    if "contract" in results:
        rows = (
            (engine, of.get("passed", 0), of.get("failure", 0) + of.get("error", 0), of.get("skipped", 0))
            for engine, of in results["contract"].items()
        )
        yield table("The contract suite", "engine", "passed", "failed", "skipped", rows=rows, left=["engine"])
    for key in ("sglang_pd", "swap"):
        if key in results:
            yield table(key, "measured", "value", rows=results[key].items())
    if "migrate" in results:
        names = ("from one engine", "answers", "equal")
        rows = ((way, counts["answers"], counts["equal"]) for way, counts in results["migrate"].items())
        yield table("Answers that went on elsewhere", *names, rows=rows, left=names[:1])


def plot(results: Results, path: Path) -> None:
    """The ratio of each pair, and the time of each load of an adapter."""
    with panels(path, (12, 4), columns=2) as (left_axes, right_axes):
        for key, colour in (("sglang", "tab:green"), ("lora", "tab:blue")):
            if rows := results.get(f"{key}_pairs"):
                left_axes.plot([row["ratio"] for row in rows], "o-", color=colour, label=key)
                left_axes.legend()
        left_axes.axhline(0.97, color="gray", linestyle=":")
        left_axes.set(title="tokens/s behind us over the engine's own server", xlabel="pair")
        right_axes.plot(results.get("lora_fleet_loads_s", []), "o-", color="tab:green")
        right_axes.axhline(1, color="gray", linestyle=":")
        right_axes.set(title="an adapter on four workers, without the engine's time", xlabel="call", ylabel="s")
