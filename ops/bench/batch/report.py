"""Targets and tables."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from ops.bench.batch.plot import plot
from ops.bench.disagg.play import percentile
from ops.bench.parts import Results, Target, table

__all__ = ["TARGETS", "TITLE", "plot", "tables"]
TITLE = "Batches"
TARGETS: dict[str, dict[str, Target]] = {
    "alone": {
        "throughput_ratio": (0.95, True),
        "alone_other_cores": None,
    },
    "beside": {
        "busy": (0.95, True),
        "online_ttft_p99_ratio": (1.10, False),
        "online_itl_p99_ratio": (1.10, False),
        "busy_online_only": None,
        "batch_tokens_per_s_beside": None,
        "batch_tokens_per_s_alone": None,
        "batch_share_of_capacity": None,
        "other_cores": None,
    },
    "short": {
        "short_busy": None,
        "short_busy_online_only": None,
        "short_online_ttft_p99_ratio": None,
        "short_online_itl_p99_ratio": None,
        "short_batch_share_of_capacity": None,
        "short_other_cores": None,
    },
    "intake": {
        "validate_s": (20.0, False),
        "api_memory_mb": (100.0, False),
        "redis_bytes_per_line_peak": None,
        "redis_bytes_after": None,
        "lines_per_s": None,
        "live_p99_ms": None,
        "batch_worker_rss_mb": None,
        "intake_other_cores": None,
    },
}


def tables(results: Results) -> Iterator[Table]:
    if "alone" in results:
        yield _alone(results["alone"])
    if "beside" in results:
        yield _beside("Beside: those online, from a trace; cores in use", results["beside"])
    if "short" in results:
        yield _beside("Beside: those online, with short prompts; cores in use", results["short"])
    if "intake" in results:
        yield _intake(results)


def _alone(rows: list[dict[str, Any]]) -> Table:
    names = ("pair", "tokens", "generate s", "tokens/s", "batch s", "tokens/s", "ratio", "validating s", "running s")
    result_table = table(
        "Alone: real vLLM on the same cores", *names, "finishing s", "ratio of running", "equal", "others' cores"
    )
    for i, r in enumerate(rows, 1):
        ours, theirs = r["ours"], r["theirs"]
        speeds = (theirs["seconds"], r["tokens"] / theirs["seconds"], ours["seconds"], r["tokens"] / ours["seconds"])
        parts = (ours["validate_s"], ours["run_s"], ours["finish_s"], r["run_ratio"])
        figures = (f"{x:.1f}" for x in speeds), (f"{x:.3g}" for x in (r["ratio"], *parts))
        result_table.add_row(
            str(i), str(r["tokens"]), *figures[0], *figures[1], str(r["equal"]), f"{r['other_cores']:.2f}"
        )
    return result_table


def _beside(title: str, rows: list[dict[str, Any]]) -> Table:
    names = ("batch", "requests", "busy", "TTFT p50 ms", "p99", "ITL p50 ms", "p99", "max", "batch tokens/s")
    parts = ("api", "batch", "workers", "redis", "client", "machine")
    result_table = table(title, *names, *parts, "others", "client late p99 ms", left=["batch"])
    for r in rows:
        ttft, gaps = r["ttft_ms"], r["gaps_ms"]
        ms = (percentile(ttft, 50), percentile(ttft, 99), percentile(gaps, 50), percentile(gaps, 99), max(gaps))
        cores = (*(r["cores"][part] for part in parts), r["other_cores"])
        result_table.add_row(
            "with" if r["batch"] else "without", str(r["requests"]), f"{r['busy']:.3f}", *(f"{x:.1f}" for x in ms),
            f"{r['batch_tokens_per_s']:.0f}", *(f"{x:.2f}" for x in cores), f"{r['client_late_p99_ms']:.2f}",
        )  # fmt: skip
    return result_table


def _intake(results: Results) -> Table:
    r = results["intake"]
    title = f"Intake: {r['lines']:,} lines, {r['file_mb']:.0f} MB; then {r['run_lines']:,} lines computed"
    result_table = table(title, "measured", "value")
    keys = (
        "upload_s", "validate_s", "api_memory_mb", "api_memory_mb_run", "batch_worker_memory_mb", "batch_worker_rss_mb",
        "redis_bytes_per_line_peak", "redis_bytes_after", "lines_per_s", "live_p99_ms_intake", "live_p99_ms",
        "live_max_ms", "intake_other_cores",
    )  # fmt: skip
    for key in keys:
        result_table.add_row(key, f"{results[key]:,.4g}")
    result_table.add_row("completed", f"{r['completed']:,}")
    for kind, size in r["left"].items():
        result_table.add_row(f"bytes in Redis afterwards: {kind}", f"{size:,}")
    return result_table
