"""Long prompts at rising load: how prefills delay other requests' tokens, and the cost of separating them."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import uvloop

from ops.bench.benchmarks import NO_CROSSOVER
from ops.bench.disagg.fleets import MODES, TOKENS_PER_S, shapes, start
from ops.bench.disagg.play import Asked, Cpu, Served, lateness, percentile, play, poisson
from ops.bench.load import System
from ops.bench.parts import Say
from ops.bench.size import Size

# Shares of the prefill capacity of two workers; above 0.5, one prefill worker can't keep up.
SHARES = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
QUICK_SHARES = (0.2, 0.4, 0.6)
REFERENCE = 0.4  # where the one prefill worker is busy 80 % of the time
_SECONDS, _QUICK_SECONDS = 80.0, 30.0
_WARM_UP = 0.12  # of the time: requests of that time don't count

T = TypeVar("T")


def load(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """A row per load and mode, and a summary. Raises: Unavailable.

    The three fleets take the same requests at the same moments: what disturbs one disturbs all.
    """
    from_trace = shapes()
    tokens = fmean(prompt for prompt, _ in from_trace)
    capacity = 2 * TOKENS_PER_S / tokens
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        say("load: starting three fleets")
        systems = {mode: start(stack, directory, mode) for mode in MODES}
        uvloop.run(_warm_up(systems, size.of(6, 6, 1)))
        for share in size.of(SHARES, QUICK_SHARES, (REFERENCE,)):
            per_s, seconds = share * capacity, size.of(_SECONDS, _QUICK_SECONDS, 2.0)
            say(f"load: {per_s:.2f} requests/s for {seconds:.0f} s")
            seed = round(100 * share)  # each load has its own prompts: others would be cached
            row_by_mode = uvloop.run(together(systems, poisson(seed, per_s, seconds, from_trace), seconds, seed))
            rows += [{"share": share, "per_s": per_s, "mode": mode, **row} for mode, row in row_by_mode.items()]
    figures = {"load": rows, "prompt_tokens_mean": tokens, "capacity_per_s": capacity, **_verdict(rows)}
    if figures["crossover_per_s"] is None:
        figures["missing"] = {"crossover_per_s": NO_CROSSOVER}
    return figures


async def _warm_up(systems: dict[str, System], requests: int) -> None:
    """The first request of a worker loads code."""
    for system in systems.values():
        await play(system, [Asked(0.3 * i, 2000, 100) for i in range(requests)], 0)


async def together(
    systems: Mapping[T, System], asked: list[Asked], seconds: float, seed: int
) -> dict[T, dict[str, Any]]:
    """Sends the same requests to all systems at the same moments; clients' times, and how busy the machine was."""
    cpus = {key: Cpu(system.watch) for key, system in systems.items()}
    ends: dict[T, float] = {}
    late: list[float] = []
    watching = asyncio.create_task(lateness(late))

    async def one(key: T) -> list[Served]:
        results = await play(systems[key], asked, seed)
        ends[key] = time.perf_counter()
        return results

    began = time.perf_counter()
    everything = asyncio.gather(*(one(key) for key in systems))
    await asyncio.wait([everything], timeout=seconds)
    core_use = {key: cpu.cores() for key, cpu in cpus.items()}
    results = dict(zip(systems, await everything, strict=True))
    watching.cancel()
    parts = ("api", "workers", "redis")
    ours = sum(cores[part] for cores in core_use.values() for part in parts)
    client, machine = (next(iter(core_use.values()))[part] for part in ("client", "machine"))
    quiet = {
        "client_cores": client,
        "machine_cores": machine,
        "other_cores": machine - client - ours,
        "client_late_p99_ms": 1e3 * percentile(late, 99),
    }
    rows = {}
    for key, answers in results.items():
        warm_answers = [s for s in answers if s.at >= _WARM_UP * seconds]
        cores = {f"{part}_cores": core_use[key][part] for part in parts}
        rows[key] = {**_figures(warm_answers), "took_s": ends[key] - began, **quiet, **cores}
    return rows


def _figures(served: list[Served]) -> dict[str, float]:
    gaps = [gap for s in served for gap in s.gaps]
    ttfts = [s.ttft for s in served]
    return {
        "requests": len(served),
        "cached": sum(s.cached for s in served),
        "ttft_p50_s": percentile(ttfts, 50),
        "ttft_p99_s": percentile(ttfts, 99),
        "itl_p50_ms": 1e3 * percentile(gaps, 50),
        "itl_p99_ms": 1e3 * percentile(gaps, 99),
        "itl_max_ms": 1e3 * max(gaps),
        "e2e_mean_s": fmean(s.total for s in served),
        "e2e_per_token_ms": 1e3 * fmean(s.total / s.tokens for s in served),
    }


def _verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    by_share: dict[float, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_share.setdefault(row["share"], {})[row["mode"]] = row
    mean = {share: {mode: row["e2e_mean_s"] for mode, row in modes.items()} for share, modes in by_share.items()}
    ratios = {share: m["conditional"] / min(m["aggregated"], m["apart"]) for share, m in mean.items()}
    at = by_share[REFERENCE]
    return {
        "itl_p99_ratio": at["apart"]["itl_p99_ms"] / at["aggregated"]["itl_p99_ms"],
        "itl_p99_ratio_conditional": at["conditional"]["itl_p99_ms"] / at["aggregated"]["itl_p99_ms"],
        "reference_per_s": at["apart"]["per_s"],
        "conditional": ratios,
        "conditional_worst": max(ratios.values()),
        "crossover_per_s": _crossover([(by_share[s]["apart"]["per_s"], mean[s]) for s in sorted(mean)]),
    }


def _crossover(points: list[tuple[float, dict[str, float]]]) -> float | None:
    """The load at which the aggregated fleet's mean time becomes the lower one, interpolated linearly."""
    ahead = [(per_s, m["aggregated"] - m["apart"]) for per_s, m in points]  # positive: apart is faster
    for (x0, y0), (x1, y1) in reversed(list(pairwise(ahead))):
        if y0 > 0 >= y1:
            return x0 + (x1 - x0) * y0 / (y0 - y1)
    return None
