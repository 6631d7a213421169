"""The best plan for a day that is known beforehand, to compare a planner with.

Fleets of each fixed number say how many requests of each window are served within the objective. For a price of a
missed request, dynamic programming finds the plan that costs least in worker-seconds: it knows every arrival and
length, asks for each worker exactly one start-up time before it is needed, and pays for that time as any planner does.
The lowest price that attains the objective's share is then bisected; what a plan costs and attains is simulated,
as a planner's is. What it doesn't know is what a queue left over by too few workers does to the windows after it.
"""

import math
from collections.abc import Callable, Sequence

from ops.bench.planner.engine import Request
from ops.bench.planner.fleet import OBJECTIVE, WINDOW_S, Fleet, Outcome, fixed, following

_PRICES = (0.1, 1000.0)  # worker-seconds that a missed request costs, at the least and the most
_HALVINGS = 9


def best_fixed(rows: Callable[[], Sequence[Request]], seconds: float, most: int = 40) -> tuple[int, list[Outcome]]:
    """The smallest fixed number that attains the share, and what each number up to one more than it attains."""
    outcomes: list[Outcome] = []
    for number in range(1, most + 1):
        outcomes.append(Fleet(0.0, number).run(rows(), seconds, fixed))
        if len(outcomes) > 1 and outcomes[-2].attained >= OBJECTIVE.share:
            return number - 1, outcomes
    raise ValueError(f"{most} workers don't attain {OBJECTIVE.share}")


def best_plan(
    rows: Callable[[], Sequence[Request]], seconds: float, start_s: float, fixed_fleets: Sequence[Outcome]
) -> Outcome:
    """The cheapest plan found that attains the share."""
    misses = [[request_count - met_count for met_count, request_count in fleet.met] for fleet in fixed_fleets]
    low, high = _PRICES
    best: Outcome | None = None
    for _ in range(_HALVINGS):
        price = math.sqrt(low * high)
        worker_counts = _cheapest(misses, price, start_s)
        plan = _asked(worker_counts, start_s)
        outcome = Fleet(start_s, worker_counts[0]).run(rows(), seconds, following(plan))
        if outcome.attained >= OBJECTIVE.share:
            high = price
            if best is None or outcome.workers < best.workers:
                best = outcome
        else:
            low = price
    assert best is not None, "the most workers attain the share"
    return best


def _cheapest(missed: Sequence[Sequence[int]], price: float, start_s: float) -> list[int]:
    """Workers that serve in each window, at the least cost of workers, starts and misses."""
    counts = range(len(missed))
    cost = [0.0 for _ in counts]
    ways: list[list[int]] = []
    for window in range(len(missed[0])):
        here, way = [], []
        for n in counts:
            before = min(counts, key=lambda m: cost[m] + (max(0, n - m) * start_s if window else 0.0))
            start = max(0, n - before) * start_s if window else 0.0
            here.append(cost[before] + start + (n + 1) * WINDOW_S + price * missed[n][window])
            way.append(before)
        cost = here
        ways.append(way)
    n = min(counts, key=lambda m: cost[m])
    worker_counts = []
    for way in reversed(ways):
        worker_counts.append(n + 1)
        n = way[n]
    return worker_counts[::-1]


def _asked(needed: Sequence[int], start_s: float) -> list[int]:
    """Workers wanted in each window, so that as many serve as are needed: the most of the start-up time to come."""
    lead = math.ceil(start_s / WINDOW_S)
    return [max(needed[i : i + lead + 1]) for i in range(len(needed))]
