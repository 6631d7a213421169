"""A day on simulated fleets: our planner, the best plan, fixed numbers of workers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ops.bench.parts import Say
from ops.bench.planner.clairvoyant import best_fixed, best_plan
from ops.bench.planner.days import DAY_S, again, drawn, made, trace
from ops.bench.planner.engine import Request
from ops.bench.planner.fleet import FIRST, START_S, Fleet, Outcome, ours
from ops.bench.size import Size

STARTS_S = (START_S, 0.0, 120.0)
_FEW_S = 600.0  # of the day, in the smallest size


def simulation(_directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """The trace's day: five seeds at a start-up of 30 s, the first at others, too; quick: two. Raises: Unavailable."""
    rows = trace()
    seeds, seconds = range(size.of(5, 2, 1)), size.of(DAY_S, DAY_S, _FEW_S)
    runs: list[dict[str, Any]] = []
    for seed in seeds:
        fresh = _again([row for row in rows if row.at < seconds], seed)
        say(f"simulation: seed {seed}, fixed numbers")
        static, fixed_fleets = best_fixed(fresh, seconds)
        for start in STARTS_S if seed == 0 and size is Size.FULL else [START_S]:
            say(f"simulation: seed {seed}, start-up {start:.0f} s")
            mine = Fleet(start, FIRST).run(fresh(), seconds, ours)
            best = best_plan(fresh, seconds, start, fixed_fleets)
            runs.append(_row(seed, start, mine, best, static, fixed_fleets))
    at_30 = [run for run in runs if run["start_s"] == START_S]
    return {
        "runs": runs,
        "attained": min(run["attained"] for run in at_30),
        "attained_mean": fmean(run["attained"] for run in at_30),
        "workers": fmean(run["workers"] for run in at_30),
        "workers_vs_clairvoyant": fmean(run["workers"] / run["best"] for run in at_30),
        "workers_vs_static": fmean(run["workers"] / run["static"] for run in at_30),
        "fixed": {n + 1: share for n, share in enumerate(at_30[0]["fixed"])},
        "day": at_30[0]["day"],
        "pictured": size is Size.FULL,
    }


def others(_directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Made days of other shapes, at 30 s: what isn't tuned for."""
    rows, seconds = trace(), size.of(DAY_S, DAY_S, _FEW_S)
    figures = {}
    for seed in size.of((7, 8), (7,), (7,)):
        for name, rate in list(made(seed).items())[: size.of(None, None, 1)]:
            say(f"other days: {name}, seed {seed}")

            def fresh(rate: Callable[[float], float] = rate, seed: int = seed) -> list[Request]:
                return drawn(rate, seconds, rows, seed)

            static, fixed_fleets = best_fixed(fresh, seconds)
            mine = Fleet(START_S, FIRST).run(fresh(), seconds, ours)
            best = best_plan(fresh, seconds, START_S, fixed_fleets)
            figures[f"{name} {seed}"] = _row(seed, START_S, mine, best, static, fixed_fleets)
    return {"others": figures}


def _again(rows: Sequence[Request], seed: int) -> Callable[[], list[Request]]:
    return lambda: again(rows, seed)


def _row(
    seed: int, start_s: float, mine: Outcome, best: Outcome, static: int, fixed_fleets: Sequence[Outcome]
) -> dict[str, Any]:
    return {
        "seed": seed, "start_s": start_s, "attained": mine.attained, "workers": mine.workers,
        "best": best.workers, "best_attained": best.attained, "static": static,
        "fixed": [fleet.attained for fleet in fixed_fleets],
        "day": {"arrivals": [all_of for _, all_of in mine.met], "ours": mine.wanted, "best": best.wanted},
    }  # fmt: skip
