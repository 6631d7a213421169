"""Targets and tables."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from ops.bench.batch.plot import plot
from ops.bench.disagg.play import percentile
from ops.bench.figures import targets
from ops.bench.parts import Results, table

__all__ = ["TARGETS", "TITLE", "plot", "tables"]
TITLE = "Batches"
TARGETS = targets("""
    alone: throughput_ratio >= 0.95, alone_other_cores
    beside: busy >= 0.95, online_ttft_p99_ratio <= 1.1, online_itl_p99_ratio <= 1.1, busy_online_only
            batch_tokens_per_s_beside, batch_tokens_per_s_alone, batch_share_of_capacity, other_cores
    short: short_busy, short_busy_online_only, short_online_ttft_p99_ratio, short_online_itl_p99_ratio
           short_batch_share_of_capacity, short_other_cores
    intake: validate_s <= 20, api_memory_mb <= 100, redis_bytes_per_line_peak, redis_bytes_after, lines_per_s
            live_p99_ms, batch_worker_rss_mb, intake_other_cores
""")
_BESIDE = {
    "beside": "Beside: those online, from a trace; cores in use",
    "short": "Beside: those online, with short prompts; cores in use",
}


def tables(results: Results) -> Iterator[Table]:
    if "alone" in results:
        yield _alone(results["alone"])
    for part, title in _BESIDE.items():
        if part in results:
            yield _beside(title, results[part])
    if "intake" in results:
        yield _intake(results)


def _alone(rows: list[dict[str, Any]]) -> Table:
    names = ("pair", "tokens", "generate s", "tokens/s", "batch s", "tokens/s", "ratio", "validating s", "running s")
    more = ("finishing s", "ratio of running", "equal", "others' cores")
    return table("Alone: real vLLM on the same cores", *names, *more, rows=map(_pair, range(1, len(rows) + 1), rows))


def _pair(number: int, r: dict[str, Any]) -> Iterator[object]:
    ours, theirs = r["ours"], r["theirs"]
    yield from (number, r["tokens"])
    for seconds in (theirs["seconds"], ours["seconds"]):
        yield from (f"{seconds:.1f}", f"{r['tokens'] / seconds:.1f}")
    for x in (r["ratio"], ours["validate_s"], ours["run_s"], ours["finish_s"], r["run_ratio"]):
        yield f"{x:.3g}"
    yield from (r["equal"], f"{r['other_cores']:.2f}")


def _beside(title: str, runs: list[dict[str, Any]]) -> Table:
    names = ("batch", "requests", "busy", "TTFT p50 ms", "p99", "ITL p50 ms", "p99", "max", "batch tokens/s")
    parts = ("api", "batch", "workers", "redis", "client", "machine")
    rows = []
    for r in runs:
        ttft, gaps = r["ttft_ms"], r["gaps_ms"]
        ms = (percentile(ttft, 50), percentile(ttft, 99), percentile(gaps, 50), percentile(gaps, 99), max(gaps))
        cores = (*(r["cores"][part] for part in parts), r["other_cores"], r["client_late_p99_ms"])
        first = ("with" if r["batch"] else "without", r["requests"], f"{r['busy']:.3f}")
        speed = f"{r['batch_tokens_per_s']:.0f}"
        rows.append((*first, *(f"{x:.1f}" for x in ms), speed, *(f"{x:.2f}" for x in cores)))
    return table(title, *names, *parts, "others", "client late p99 ms", rows=rows, left=["batch"])


def _intake(results: Results) -> Table:
    r = results["intake"]
    title = f"Intake: {r['lines']:,} lines, {r['file_mb']:.0f} MB; then {r['run_lines']:,} lines computed"
    keys = (
        "upload_s", "validate_s", "api_memory_mb", "api_memory_mb_run", "batch_worker_memory_mb", "batch_worker_rss_mb",
        "redis_bytes_per_line_peak", "redis_bytes_after", "lines_per_s", "live_p99_ms_intake", "live_p99_ms",
        "live_max_ms", "intake_other_cores",
    )  # fmt: skip
    rows = [(key, f"{results[key]:,.4g}") for key in keys] + [("completed", f"{r['completed']:,}")]
    rows += [(f"bytes in Redis afterwards: {kind}", f"{size:,}") for kind, size in r["left"].items()]
    return table(title, "measured", "value", rows=rows)
