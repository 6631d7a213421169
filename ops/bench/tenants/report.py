"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table

TITLE = "Tenants"
TARGETS = targets("""
    shares: share_error_max <= 0.05, quiet_ttft_p99_ratio <= 1.3
    prompts: long_prompt_share <= 0.525
    cpu: cpu_per_request_ratio <= 1.1, cpu_per_answer_ratio
    usage: usage_error <= 0
    console: console_ready_ms <= 1000, axe_serious <= 0
""")


def tables(results: Results) -> Iterator[Table]:
    if "got_s" in results:
        total = sum(results["got_s"].values())
        rows = [
            [of, f"{results['weights'][of]:g}", f"{s:.1f}", f"{s / total:.3f}", results["answered"][of]]
            for of, s in results["got_s"].items()
        ]
        names = ("tenant", "weight", "engine s", "share", "requests")
        yield table("Engine seconds of two floods", *names, rows=rows, left=names[:1])
    if "ttft_ms" in results:
        rows = [
            [fleet, *(f"{part_of(times_ms, p):.1f}" for p in (0.5, 0.9, 0.99)), len(times_ms)]
            for fleet, times_ms in results["ttft_ms"].items()
        ]
        yield table(
            "TTFT of the quiet tenant, ms", "fleet", "p50", "p90", "p99", "requests", rows=rows, left=("fleet",)
        )
    if "cpu_ms" in results:
        rows = [[state, f"{times_ms:.3f}"] for state, times_ms in results["cpu_ms"].items()]
        yield table("CPU of the API", "a request of", "CPU-ms", rows=rows, left=("a request of",))


def plot(results: Results, path: Path) -> None:
    if "ttft_ms" not in results:
        return
    with panels(path, (6, 4)) as (axes,):
        for fleet, times_ms in results["ttft_ms"].items():
            axes.plot(sorted(times_ms), [i / len(times_ms) for i in range(len(times_ms))], label=fleet)
        axes.set(xlabel="TTFT, ms", ylabel="share of requests", title="A quiet tenant")
        axes.legend()


def part_of(values: list[float], part: float) -> float:
    """The value that such a part of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
