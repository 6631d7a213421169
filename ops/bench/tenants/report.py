"""Targets, tables, a plot."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.parts import Results, Target, table

TITLE = "Tenants"
TARGETS: dict[str, dict[str, Target]] = {
    "shares": {
        "share_error_max": (0.05, False),
        "quiet_ttft_p99_ratio": (1.3, False),
    },
    "prompts": {
        "long_prompt_share": (0.525, False),
    },
    "cpu": {
        "cpu_per_request_ratio": (1.1, False),
        "cpu_per_answer_ratio": None,
    },
    "usage": {
        "usage_error": (0, False),
    },
    "console": {
        "console_ready_ms": (1000, False),
        "axe_serious": (0, False),
    },
}


def tables(results: Results) -> Iterator[Table]:
    if "got_s" in results:
        result_table = table(
            "Engine seconds of two floods", "tenant", "weight", "engine s", "share", "requests", left=("tenant",)
        )
        total = sum(results["got_s"].values())
        for tenant, seconds in results["got_s"].items():
            result_table.add_row(
                tenant, f"{results['weights'][tenant]:g}", f"{seconds:.1f}", f"{seconds / total:.3f}",
                str(results["answered"][tenant]),
            )  # fmt: skip
        yield result_table
    if "ttft_ms" in results:
        result_table = table("TTFT of the quiet tenant, ms", "fleet", "p50", "p90", "p99", "requests", left=("fleet",))
        for fleet, times_ms in results["ttft_ms"].items():
            result_table.add_row(fleet, *(f"{_part(times_ms, p):.1f}" for p in (0.5, 0.9, 0.99)), str(len(times_ms)))
        yield result_table
    if "cpu_ms" in results:
        result_table = table("CPU of the API", "a request of", "CPU-ms", left=("a request of",))
        for state, times_ms in results["cpu_ms"].items():
            result_table.add_row(state, f"{times_ms:.3f}")
        yield result_table


def plot(results: Results, path: Path) -> None:
    if "ttft_ms" not in results:
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for fleet, times_ms in results["ttft_ms"].items():
        axes.plot(sorted(times_ms), [i / len(times_ms) for i in range(len(times_ms))], label=fleet)
    axes.set(xlabel="TTFT, ms", ylabel="share of requests", title="A quiet tenant")
    axes.legend()
    figure.savefig(path)


def _part(found: list[float], part: float) -> float:
    return sorted(found)[min(len(found) - 1, int(part * len(found)))]
