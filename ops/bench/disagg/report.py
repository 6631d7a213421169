"""Targets, tables, one figure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.disagg.fleets import MODES
from ops.bench.parts import Results, Target, table

TITLE = "Prefill and decode on workers of their own"
TARGETS: dict[str, dict[str, Target]] = {
    "transfer": {
        "nixl_efficiency_min": (0.8, True),
        "nixl_loop_held_ms": (2.0, False),
    },
    "hop": {
        "hop_p50_ms": (4.0, False),
        "hop_p99_ms": None,
    },
    "load": {
        "itl_p99_ratio": None,
        "conditional_worst": (1.05, False),
        "itl_p99_ratio_conditional": None,
        "reference_per_s": None,
        "crossover_per_s": None,
    },
}


def tables(results: Results) -> Iterator[Table]:
    if "transfer" in results:
        names = ("MiB", "blocks", "pairs", "bare ms", "ours ms", "GB/s", "ratio")
        result_table = table("READ of host memory, medians", *names, left=["blocks"])
        for r in results["transfer"]:
            blocks = f"{'adjacent' if r['adjacent'] else 'scattered'} {r['block'] // 1024} KiB"
            figures = (r["bare_ms"], r["ours_ms"], r["bytes"] / r["ours_ms"] / 1e6, r["efficiency"])
            result_table.add_row(str(r["bytes"] // 2**20), blocks, str(r["pairs"]), *(f"{x:.3f}" for x in figures))
        yield result_table
    if "hop" in results:
        stages = [k for k, v in results["hop"][0].items() if isinstance(v, dict) and "p50" in v]
        result_table = table("Stages of a request, ms: p50 (p99)", "requests/s", "apart", *stages)
        for r in results["hop"]:
            spans = (f"{r[s]['p50']:.1f} ({r[s]['p99']:.1f})" for s in stages)
            result_table.add_row(f"{r['per_s']:g}", f"{r['apart']} of {r['requests']}", *spans)
        yield result_table
    for key, title in (
        ("load", "Long prompts, two workers"),
        ("threshold", "Short and long prompts, by remote_tokens"),
    ):
        if key in results:
            yield _loads(title, results[key])


def _loads(title: str, rows: list[dict[str, Any]]) -> Table:
    names = ("requests/s", "mode", "requests", "TTFT p50 s", "p99", "ITL p50 ms", "p99", "max", "end to end s")
    result_table = table(
        title, *names, "per token ms", "api cores", "workers", "machine", "others", "client late p99 ms", left=["mode"]
    )
    for r in rows:
        keys = ("ttft_p50_s", "ttft_p99_s", "itl_p50_ms", "itl_p99_ms", "itl_max_ms", "e2e_mean_s", "e2e_per_token_ms")
        cores = ("api_cores", "workers_cores", "machine_cores", "other_cores", "client_late_p99_ms")
        first = (f"{r['per_s']:.2f}", r["mode"]) if "mode" in r else ("", str(r["remote_tokens"]))
        result_table.add_row(
            *first, str(r["requests"]), *(f"{r[k]:.3g}" for k in keys), *(f"{r[k]:.2f}" for k in cores)
        )
    return result_table


def plot(results: Results, path: Path) -> None:
    """p99 between tokens and mean time to the last one over the load; the transfers' ratios; the hop."""
    figure = Figure(figsize=(15, 9), layout="tight")
    itl, e2e, transfer, hop = figure.subplots(2, 2).flat
    for axis, key, label in ((itl, "itl_p99_ms", "p99 between tokens, ms"), (e2e, "e2e_mean_s", "mean end to end, s")):
        for mode in MODES if "load" in results else ():
            rows = [r for r in results["load"] if r["mode"] == mode]
            axis.plot([r["per_s"] for r in rows], [r[key] for r in rows], "o-", label=mode)
        if results.get("crossover_per_s"):
            text = f"from {results['crossover_per_s']:.2f}/s on aggregated is faster than apart"
            axis.axvline(results["crossover_per_s"], color="gray", linestyle=":", label=text)
        axis.set(xlabel="requests/s, prompts of 1,024 to 16,384 tokens", ylabel=label, yscale="log")
        if "load" in results:
            axis.legend()
    if "transfer" in results:
        rows = results["transfer"]
        names = [f"{r['bytes'] // 2**20} MiB\n{r['descriptors']} span(s)" for r in rows]
        transfer.bar(range(len(rows)), [r["efficiency"] for r in rows], tick_label=names)
        transfer.tick_params(axis="x", labelsize=7)
        transfer.axhline(0.8, color="gray", linestyle=":")
        transfer.set(ylabel="bare NIXL's time over ours", ylim=(0, 1.1))
    if "hop" in results:
        r = results["hop"][-1]
        stages = [k for k, v in r.items() if isinstance(v, dict) and "p50" in v and k != "decode"]
        for i, percent in enumerate(("p50", "p99")):
            places = [x + 0.4 * i for x in range(len(stages))]
            hop.bar(places, [r[s][percent] for s in stages], 0.4, label=percent)
        hop.set_xticks([x + 0.2 for x in range(len(stages))], stages)
        hop.set(ylabel=f"ms, {r['per_s']:g} requests/s, prompts of 300 tokens")
        hop.legend()
    figure.savefig(path, dpi=90)
