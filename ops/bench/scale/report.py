"""Targets, tables, one figure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results, table

TITLE = "A thousand workers behind one deployment"
TARGETS = targets("""
    placing: place_redis_ms_1000 <= 0.5, place_api_ms_1000 <= 1, round64_block_ms_1000 <= 10
    watching: watch_redis_share_1000x100 <= 0.05
    index: events_per_s >= 100000, bytes_per_block <= 80
""")
_PANELS = {
    "redis_ms": "CPU of Redis, ms a placement",
    "api_ms": "CPU of the API, ms a placement",
    "block_ms": "longest hold of the event loop, ms",
}


def tables(results: Results) -> Iterator[Table]:
    if "placing" in results:
        keys = ("redis_ms", "api_ms", "block_ms", "round_ms")
        rows = [
            [f"{row['workers']:,}", row["round"], *(f"{row[key]:.3f}" for key in keys)] for row in results["placing"]
        ]
        names = ("workers", "round", "redis ms", "api ms", "holds the loop, ms", "round ms")
        title = "Placements of 128 blocks, by workers and requests in a round"
        yield table(title, *names, rows=rows, left=())
    if "watching" in results:
        replicas = sorted({row["replicas"] for row in results["watching"]})
        rows = [
            [f"{workers:,}", *(f"{shares[r]:.4f}" for r in replicas)]
            for workers, shares in _by_workers(results["watching"]).items()
        ]
        title = "Looks for dead workers: share of a core of Redis, by workers and API replicas"
        yield table(title, "workers", *map(str, replicas), rows=rows, left=())
    if "tokens" in results:
        rows = [
            [row["replicas"], row["messages"], f"{row['message_us']:.2f}", f"{row['token_us']:.2f}"]
            for row in results["tokens"]
        ]
        names = ("replicas", "messages a step", "us a message", "us a token")
        title = "Tokens of a worker with 100 streams: CPU of Redis, by API replicas"
        yield table(title, *names, rows=rows, left=())


def plot(results: Results, path: Path) -> None:
    with panels(path, (18, 5), columns=4) as all_axes:
        axes = iter(all_axes)
        if "placing" in results:
            for (key, title), axis in zip(_PANELS.items(), axes, strict=False):
                for size in sorted({row["round"] for row in results["placing"]}):
                    rows = [row for row in results["placing"] if row["round"] == size]
                    points = [row["workers"] for row in rows], [row[key] for row in rows]
                    axis.plot(*points, "o-", label=f"rounds of {size}")
                axis.set(xscale="log", yscale="log", xlabel="workers", title=title)
                axis.legend()
        if "watching" in results:
            axis = next(axes)
            for workers, shares in _by_workers(results["watching"]).items():
                axis.plot(list(shares), list(shares.values()), "o-", label=f"{workers:,} workers")
            title = "looks for dead workers: share of Redis' core"
            axis.set(xscale="log", yscale="log", xlabel="API replicas", title=title)
            axis.legend()
        for axis in axes:
            axis.axis("off")


def _by_workers(rows: list[dict[str, Any]]) -> dict[int, dict[int, float]]:
    shares: dict[int, dict[int, float]] = {}
    for row in rows:
        shares.setdefault(row["workers"], {})[row["replicas"]] = row["share"]
    return shares
