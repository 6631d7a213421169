"""Targets, tables, one figure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from ops.bench.disagg.fleets import MODES
from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table

TITLE = "Prefill and decode on workers of their own"
TARGETS = targets("""
    transfer: nixl_efficiency_min >= 0.8, nixl_loop_held_ms <= 2
    hop: hop_p50_ms <= 4, hop_p99_ms
    load: itl_p99_ratio, conditional_worst <= 1.05, itl_p99_ratio_conditional, reference_per_s, crossover_per_s
""")
_LOADS = {"load": "Long prompts, two workers", "threshold": "Short and long prompts, by remote_tokens"}


def tables(results: Results) -> Iterator[Table]:
    if "transfer" in results:
        names = ("MiB", "blocks", "pairs", "bare ms", "ours ms", "GB/s", "ratio")
        yield table("READ of host memory, medians", *names, rows=map(_transfer, results["transfer"]), left=["blocks"])
    if "hop" in results:
        stages = _stages(results["hop"][0])
        rows = []
        for r in results["hop"]:
            spans = (f"{r[s]['p50']:.1f} ({r[s]['p99']:.1f})" for s in stages)
            rows.append((f"{r['per_s']:g}", f"{r['apart']} of {r['requests']}", *spans))
        yield table("Stages of a request, ms: p50 (p99)", "requests/s", "apart", *stages, rows=rows)
    for key, title in _LOADS.items():
        if key in results:
            yield _loads(title, results[key])


def _stages(row: dict[str, Any]) -> list[str]:
    return [key for key, value in row.items() if isinstance(value, dict) and "p50" in value]


def _transfer(r: dict[str, Any]) -> Iterator[object]:
    yield from (r["bytes"] // 2**20, f"{'adjacent' if r['adjacent'] else 'scattered'} {r['block'] // 1024} KiB")
    yield r["pairs"]
    for x in (r["bare_ms"], r["ours_ms"], r["bytes"] / r["ours_ms"] / 1e6, r["efficiency"]):
        yield f"{x:.3f}"


def _loads(title: str, runs: list[dict[str, Any]]) -> Table:
    names = ("requests/s", "mode", "requests", "TTFT p50 s", "p99", "ITL p50 ms", "p99", "max", "end to end s")
    more = ("per token ms", "api cores", "workers", "machine", "others", "client late p99 ms")
    keys = ("ttft_p50_s", "ttft_p99_s", "itl_p50_ms", "itl_p99_ms", "itl_max_ms", "e2e_mean_s", "e2e_per_token_ms")
    cores = ("api_cores", "workers_cores", "machine_cores", "other_cores", "client_late_p99_ms")
    rows = []
    for r in runs:
        first = (f"{r['per_s']:.2f}", r["mode"]) if "mode" in r else ("", r["remote_tokens"])
        rows.append((*first, r["requests"], *(f"{r[k]:.3g}" for k in keys), *(f"{r[k]:.2f}" for k in cores)))
    return table(title, *names, *more, rows=rows, left=["mode"])


def plot(results: Results, path: Path) -> None:
    """p99 between tokens and mean time to the last one over the load; the transfers' ratios; the hop."""
    with panels(path, (15, 9), 2, 2) as (itl, e2e, transfer, hop):
        labels = {"itl_p99_ms": "p99 between tokens, ms", "e2e_mean_s": "mean end to end, s"}
        for axis, (key, label) in zip((itl, e2e), labels.items(), strict=True):
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
            stages = [stage for stage in _stages(r) if stage != "decode"]
            for i, percent in enumerate(("p50", "p99")):
                places = [x + 0.4 * i for x in range(len(stages))]
                hop.bar(places, [r[s][percent] for s in stages], 0.4, label=percent)
            hop.set_xticks([x + 0.2 for x in range(len(stages))], stages)
            hop.set(ylabel=f"ms, {r['per_s']:g} requests/s, prompts of 300 tokens")
            hop.legend()
