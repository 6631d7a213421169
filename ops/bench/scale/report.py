"""Targets, tables, one figure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from ops.bench.parts import Results, Target, table

TITLE = "A thousand workers behind one deployment"
TARGETS: dict[str, dict[str, Target]] = {
    "placing": {
        "place_redis_ms_1000": (0.5, False),
        "place_api_ms_1000": (1.0, False),
        "round64_block_ms_1000": (10.0, False),
    },
    "watching": {
        "watch_redis_share_1000x100": (0.05, False),
    },
    "index": {
        "events_per_s": (100_000, True),
        "bytes_per_block": (80, False),
    },
}
_PANELS = (("redis_ms", "CPU of Redis, ms a placement"), ("api_ms", "CPU of the API, ms a placement"),
           ("block_ms", "longest hold of the event loop, ms"))  # fmt: skip


def tables(results: Results) -> Iterator[Table]:
    if "placing" in results:
        names = ("redis ms", "api ms", "holds the loop, ms", "round ms")
        result_table = table(
            "Placements of 128 blocks, by workers and requests in a round", "workers", "round", *names, left=()
        )
        for row in results["placing"]:
            figures = (f"{row[k]:.3f}" for k in ("redis_ms", "api_ms", "block_ms", "round_ms"))
            result_table.add_row(f"{row['workers']:,}", str(row["round"]), *figures)
        yield result_table
    if "watching" in results:
        replicas = sorted({row["replicas"] for row in results["watching"]})
        result_table = table(
            "Looks for dead workers: share of a core of Redis, by workers and API replicas",
            "workers", *map(str, replicas), left=(),
        )  # fmt: skip
        for workers, shares in _by_workers(results["watching"]).items():
            result_table.add_row(f"{workers:,}", *(f"{shares[r]:.4f}" for r in replicas))
        yield result_table
    if "tokens" in results:
        names = ("messages a step", "us a message", "us a token")
        result_table = table(
            "Tokens of a worker with 100 streams: CPU of Redis, by API replicas", "replicas", *names, left=()
        )
        for row in results["tokens"]:
            figures = (f"{row[k]:.2f}" for k in ("message_us", "token_us"))
            result_table.add_row(str(row["replicas"]), str(row["messages"]), *figures)
        yield result_table


def plot(results: Results, path: Path) -> None:
    figure = Figure(figsize=(18, 5), layout="tight")
    axes = iter(figure.subplots(1, 4).flat)
    if "placing" in results:
        for (key, title), axis in zip(_PANELS, axes, strict=False):
            for size in sorted({row["round"] for row in results["placing"]}):
                rows = [row for row in results["placing"] if row["round"] == size]
                axis.plot([row["workers"] for row in rows], [row[key] for row in rows], "o-", label=f"rounds of {size}")
            axis.set(xscale="log", yscale="log", xlabel="workers", title=title)
            axis.legend()
    if "watching" in results:
        axis = next(axes)
        for workers, shares in _by_workers(results["watching"]).items():
            axis.plot(list(shares), list(shares.values()), "o-", label=f"{workers:,} workers")
        axis.set(
            xscale="log", yscale="log", xlabel="API replicas", title="looks for dead workers: share of Redis' core"
        )
        axis.legend()
    for axis in axes:
        axis.axis("off")
    figure.savefig(path, dpi=90)


def _by_workers(rows: list[dict[str, Any]]) -> dict[int, dict[int, float]]:
    shares: dict[int, dict[int, float]] = {}
    for row in rows:
        shares.setdefault(row["workers"], {})[row["replicas"]] = row["share"]
    return shares
