"""Measures how far a store that all workers share brings routing towards the bound.

The way begins at the best router without a store. The bound is one infinite cache, shared by all workers at no cost. In
the simulator, on both development traces.
"""

from pathlib import Path
from statistics import fmean
from typing import Any

from ops.bench.load import trace as trace_file
from ops.bench.parts import Say
from ops.bench.route.simulation import CACHES, OURS, RIVALS, TRACES, WORKERS, beginning, run
from ops.bench.simulator.policies import ORACLE
from ops.bench.size import Size

_BLOCK_S = 512 / 10_000  # seconds in which the simulated GPU computes a block
_BLOCK_BYTES = 512 * 128 * 2**10  # of the KV of a model of 8 billion parameters
# Seconds in which a block is loaded: as large a share of computing as here (`loading`: 91 of 1,522 ms, from disk); and
# from a store of 5 GB/s, which is slow for a GPU's host.
_PRICES = {"way_to_oracle": 0.06 * _BLOCK_S, "way_to_oracle_5_gb_s": _BLOCK_BYTES / 5e9}


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Means of traces, sizes and caches; for each price. Raises: Unavailable."""
    rows = []
    traces = [trace_file(name) for name in TRACES[: size.of(2, 2, 1)]]
    if size.smallest:
        traces = [beginning(trace, out_dir) for trace in traces]
    for trace in traces:
        for cache in size.of(CACHES, CACHES[-1:], CACHES[-1:]):
            for workers in size.of(WORKERS, (8,), WORKERS[:1]):
                say(f"{trace.name.partition('_')[0]}, {workers} workers, {cache} blocks")
                rows.append(_row(out_dir, trace, workers, cache))
    ways = {key: fmean(_way(row, key) for row in rows) for key in _PRICES}
    return ways | {"simulated": rows}


def _row(out_dir: Path, path: Path, workers: int, cache: int) -> dict[str, Any]:
    """Mean TTFT, seconds: of the best router without a store, of the bound, and of ours for each price."""
    plain = run(out_dir, path, workers, [OURS, *RIVALS, ORACLE], 0, cache)
    row: dict[str, Any] = {"trace": path.name, "workers": workers, "cache": cache}
    row |= {"best": min(plain[p]["ttft_mean"] for p in RIVALS), "bound": plain[ORACLE]["ttft_mean"]}
    row["without"] = plain[OURS]["ttft_mean"]
    for key, load_s in _PRICES.items():
        policy = f"{OURS}?load_s={load_s}"
        row[key] = run(out_dir, path, workers, [policy], 0, cache, "--store", str(load_s))[policy]["ttft_mean"]
    return row


def _way(row: dict[str, Any], key: str) -> float:
    """The part of the way to the bound, as `make bench NAME=route` has it: 0 is the best rival, 1 the bound."""
    return float((row["best"] - row[key]) / (row["best"] - row["bound"]))
