"""Tables, one figure, and the line of JSON."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from ops.bench.disagg.play import percentile

Results = Mapping[str, Any]
TARGETS: dict[str, tuple[float, bool] | None] = {  # aimed at, and whether that is a floor
    "throughput_ratio": (0.95, True),
    "busy": (0.95, True),
    "online_ttft_p99_ratio": (1.10, False),
    "online_itl_p99_ratio": (1.10, False),
    "validate_s": (20.0, False),
    "api_memory_mb": (100.0, False),
    "busy_online_only": None,
    "batch_tokens_per_s_beside": None,
    "batch_tokens_per_s_alone": None,
    "batch_share_of_capacity": None,
    "short_busy": None,
    "short_busy_online_only": None,
    "short_online_ttft_p99_ratio": None,
    "short_online_itl_p99_ratio": None,
    "short_batch_share_of_capacity": None,
    "redis_bytes_per_line_peak": None,
    "redis_bytes_after": None,
    "lines_per_s": None,
    "live_p99_ms": None,
    "batch_worker_rss_mb": None,
    "other_cores": None,
}


def json_line(results: Results) -> str:
    return json.dumps({key: _rounded(_value(results, key)) for key in TARGETS})


def tables(results: Results) -> Iterator[Table]:
    table = _table("Batches", "measured", "value", "aimed at", "")
    for key, target in TARGETS.items():
        value = _value(results, key)
        met = None if value is None or target is None else value >= target[0] if target[1] else value <= target[0]
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[met]
        aim = "" if target is None else f"{'≥' if target[1] else '≤'} {target[0]:g}"
        table.add_row(key, "-" if value is None else f"{value:,.4g}", aim, mark)
    yield table
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
    table = _table(
        "Alone: real vLLM on the same cores", *names, "finishing s", "ratio of running", "equal", "others' cores"
    )
    for i, r in enumerate(rows, 1):
        ours, theirs = r["ours"], r["theirs"]
        speeds = (theirs["seconds"], r["tokens"] / theirs["seconds"], ours["seconds"], r["tokens"] / ours["seconds"])
        parts = (ours["validate_s"], ours["run_s"], ours["finish_s"], r["run_ratio"])
        figures = (f"{x:.1f}" for x in speeds), (f"{x:.3g}" for x in (r["ratio"], *parts))
        table.add_row(str(i), str(r["tokens"]), *figures[0], *figures[1], str(r["equal"]), f"{r['other_cores']:.2f}")
    return table


def _beside(title: str, rows: list[dict[str, Any]]) -> Table:
    names = ("batch", "requests", "busy", "TTFT p50 ms", "p99", "ITL p50 ms", "p99", "max", "batch tokens/s")
    parts = ("api", "batch", "workers", "redis", "client", "machine")
    table = _table(title, *names, *parts, "others", "client late p99 ms")
    for r in rows:
        ttft, gaps = r["ttft_ms"], r["gaps_ms"]
        ms = (percentile(ttft, 50), percentile(ttft, 99), percentile(gaps, 50), percentile(gaps, 99), max(gaps))
        cores = (*(r["cores"][part] for part in parts), r["other_cores"])
        table.add_row(
            "with" if r["batch"] else "without", str(r["requests"]), f"{r['busy']:.3f}", *(f"{x:.1f}" for x in ms),
            f"{r['batch_tokens_per_s']:.0f}", *(f"{x:.2f}" for x in cores), f"{r['client_late_p99_ms']:.2f}",
        )  # fmt: skip
    return table


def _intake(results: Results) -> Table:
    r = results["intake"]
    title = f"Intake: {r['lines']:,} lines, {r['file_mb']:.0f} MB; then {r['run_lines']:,} lines computed"
    table = _table(title, "measured", "value")
    keys = (
        "upload_s", "validate_s", "api_memory_mb", "api_memory_mb_run", "batch_worker_memory_mb", "batch_worker_rss_mb",
        "redis_bytes_per_line_peak", "redis_bytes_after", "lines_per_s", "live_p99_ms_intake", "live_p99_ms",
        "live_max_ms", "intake_other_cores",
    )  # fmt: skip
    for key in keys:
        table.add_row(key, f"{results[key]:,.4g}")
    table.add_row("completed", f"{r['completed']:,}")
    for kind, used in r["left"].items():
        table.add_row(f"bytes in Redis afterwards: {kind}", f"{used:,}")
    return table


def _value(results: Results, key: str) -> float | None:
    if key != "other_cores":
        found: float | None = results.get(key)
        return found
    rows = [row["other_cores"] for part in ("alone", "beside", "short") for row in results.get(part, ())]
    rows += [results["intake_other_cores"]] if "intake" in results else []
    return max(rows, default=None)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column in ("measured", "batch") else "right")
    return table


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
