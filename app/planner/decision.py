"""The planner's decision, from what was observed: how many workers each pool gets, and which ones end.

The number is the smallest whose expected attainment is the objective's share, over the forecast's uncertainty, at the
time when a worker started now could serve. It is asked for at once. Fewer are wanted only if they suffice until a
worker started then could serve, so that a dip ends nothing that comes back.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from app.ids import PoolId, WorkerId
from app.planner.budget import least_share
from app.planner.capacity import Demand, attained, points
from app.planner.forecast import Forecast, forecast
from app.planner.gpus import Asked, shared
from app.planner.observed import EDGES, Histogram, Objective, ScaleLimits, SeenPool, SeenWorker, Traffic
from app.planner.plan import PoolPlan, Reason

_ENOUGH = 1000  # requests tell the distribution of lengths
_LATELY = 6  # windows
_HARDLY_ANY = 1e-9  # requests/s
_MOSTLY = 0.5  # of the requests
_TIGHT = 0.9  # of an objective: who needs so much of it alone has no time for others
_SLACK = 1.25  # times what a worker alone needs
_EXACT, _ENDLESS = 1e-3, 1e6
_MOST = 1000  # workers of a pool without a limit of its own
# Five points of equal share of the standard normal distribution: the forecast's uncertainty.
_NORMAL = (-1.4, -0.532, 0.0, 0.532, 1.4)


def decide(
    now: float,
    traffic: Mapping[str, Sequence[Traffic]],
    pools: Sequence[SeenPool],
    objectives: Mapping[str, Objective],
    limits: ScaleLimits,
) -> list[PoolPlan]:
    """One plan for each pool, in their order.

    traffic: of each model, ascending: coarse windows of the last days, then fine ones of the last hour. now: unix
    seconds. A pool whose model has no objective keeps its workers, within the limits.
    """
    parts = _parts(pools)
    wishes = [
        _wish(now, traffic.get(pool.model, ()), pool, objectives.get(pool.model), limits, part=parts[pool.pool])
        for pool in pools
    ]
    worker_counts = (
        [wish.asked.wanted for wish in wishes]
        if limits.gpus is None
        else shared([w.asked for w in wishes], limits.gpus)
    )
    return [
        PoolPlan(
            pool.pool,
            workers,
            wish.reason if workers == wish.asked.wanted else "gpus",
            drained(pool.workers, workers),
            wish.asked.rate,
        )
        for pool, wish, workers in zip(pools, wishes, worker_counts, strict=True)
    ]


class _Wish(Struct, frozen=True):
    """The workers that a pool would get if it were alone, and the reason."""

    asked: Asked
    reason: Reason


def _wish(
    now: float,
    traffic: Sequence[Traffic],
    pool: SeenPool,
    objective: Objective | None,
    limits: ScaleLimits,
    part: float,
) -> _Wish:
    least, most = limits.least.get(pool.pool, 0), limits.most.get(pool.pool, _MOST)
    demand = lengths(traffic)
    if objective is None or demand is None or not _measured(pool):
        some = any(window.arrivals for window in traffic[-_LATELY:])
        there = sum(not worker.draining for worker in pool.workers)
        return _limited(
            pool, max(pool.wanted, there, int(some)), "unmeasured", least, most, rate=0.0, serves=float, nearly=None
        )
    gap = max(0.0, now - traffic[-1].begin - traffic[-1].seconds)
    soon, later = forecast(traffic, gap + pool.speed.start_s, gap + 2 * pool.speed.start_s)
    share = least_share(traffic, objective)
    if pool.role != "both":  # another pool misses as many
        share = (1 + share) / 2
    aim = attainable(objective, demand, pool)
    # What no number of workers serves in time, such as a prompt that is too long for its TTFT, asks for none.
    share *= _alone(aim, demand, pool)

    def expected(foretold: Forecast, workers: int, within: Objective) -> float:
        """Attainment over the forecast's uncertainty, a log-normal distribution."""
        spread = math.sqrt(math.log(1 + foretold.error**2))
        rates = [foretold.rate * part * math.exp(spread * z - spread**2 / 2) for z in _NORMAL]
        return sum(attained(rate, workers, demand, pool.speed, within, role=pool.role) for rate in rates) / len(rates)

    rate = soon.rate * part

    def served(within: Objective) -> Callable[[int], float]:
        return lambda workers: rate * expected(soon, workers, within)

    worker_count, kind = smallest(lambda workers: expected(soon, workers, aim) >= share, most), soon.kind
    if worker_count < pool.wanted:
        down = smallest(lambda workers: expected(later, workers, aim) >= share, most)
        worker_count, kind = min(pool.wanted, max(worker_count, down)), later.kind
    reason: Reason = kind if aim == objective else "unattainable"
    online = worker_count
    if worker_count < pool.wanted and pool.aside:
        worker_count, reason = pool.wanted, "batch"
    nearly = None if aim == objective else served(aim)
    return _limited(
        pool,
        worker_count,
        reason,
        least,
        most,
        rate=rate,
        serves=served(objective),
        nearly=nearly,
        aside=worker_count - online,
    )


def attainable(objective: Objective, demand: Demand, pool: SeenPool) -> Objective:
    """The objective; its times that a worker without other work misses mostly, or just meets, are longer, with slack.

    Else a pool that just misses its objective would be planned for nobody, as nobody can be served in time; and one
    that just meets it for any number of workers, as each request needs one to itself. The longer time is that of which
    such a worker needs 0.8; for what it needs up to 0.9 of the objective nothing changes, and in between the factor
    grows evenly, so that a speed that varies a little changes little.
    """

    def longer(ttft: float, itl: float) -> Objective:
        return Objective(objective.ttft_s * ttft, objective.itl_s * itl, objective.share)

    def misses(within: Objective) -> bool:
        return _alone(within, demand, pool) < _MOSTLY

    return longer(
        _longer(lambda times: misses(longer(times, _ENDLESS))), _longer(lambda times: misses(longer(_ENDLESS, times)))
    )


def _longer(misses: Callable[[float], bool]) -> float:
    """The factor by which a time gets longer; `misses`: whether a worker misses so many times the time."""
    low, high = _TIGHT, _TIGHT
    if not misses(low):
        return 1.0
    while misses(high) and high < _ENDLESS:
        low, high = high, high * 2
    while high - low > _EXACT * low:
        middle = (low + high) / 2
        low, high = (middle, high) if misses(middle) else (low, middle)
    return 1 + (_SLACK - 1) * (high - _TIGHT) / (1 - _TIGHT) if high < 1 else _SLACK * high


def _alone(objective: Objective, demand: Demand, pool: SeenPool) -> float:
    """The share of requests that a worker serves in time which has no others."""
    return attained(_HARDLY_ANY, 1, demand, pool.speed, objective, role=pool.role)


def _measured(pool: SeenPool) -> bool:
    prefill = pool.speed.prefill_tokens_per_s > 0 or pool.role == "decode"
    return prefill and (pool.speed.step_s > 0 or pool.role == "prefill")


def _limited(
    pool: SeenPool,
    target: int,
    reason: Reason,
    least: int,
    most: int,
    rate: float,
    serves: Callable[[int], float],
    nearly: Callable[[int], float] | None,
    aside: int = 0,
) -> _Wish:
    online = target - aside
    if target < least:
        target, reason = least, "least"
    if target > most:
        target, reason = most, "most"
    return _Wish(
        Asked(min(least, target), target, pool.gpus, rate, serves, nearly=nearly, aside=max(0, target - online)), reason
    )


def smallest(suffices: Callable[[int], bool], most: int) -> int:
    """The smallest number from 0 that suffices, or `most`; whatever suffices, more do."""
    step, low = 1, -1
    while low + step < most and not suffices(low + step):
        low, step = low + step, step * 2
    high = min(low + step, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def lengths(traffic: Sequence[Traffic]) -> Demand | None:
    """Lengths of the latest requests, so many that the distribution is known; None if none has ended."""
    prompts, answers = [0] * (len(EDGES) + 1), [0] * (len(EDGES) + 1)
    prompt_tokens = answer_tokens = 0
    for window in reversed(traffic):
        for into, histogram in ((prompts, window.prompts), (answers, window.answers)):
            for index, n in enumerate(histogram.counts):
                into[index] += n
        prompt_tokens += window.prompts.total
        answer_tokens += window.answers.total
        if sum(answers) >= _ENOUGH:
            break
    if not sum(prompts) or not sum(answers):
        return None
    return Demand(points(Histogram(prompts, prompt_tokens)), points(Histogram(answers, answer_tokens)))


def _parts(pools: Sequence[SeenPool]) -> dict[PoolId, float]:
    """The part of its model's requests that each pool gets: by their workers, among pools that do the same work."""
    parts = {}
    for pool in pools:
        peers = [p for p in pools if p.model == pool.model and p.role == pool.role]
        total = sum(max(1, p.wanted) for p in peers)
        parts[pool.pool] = max(1, pool.wanted) / total
    return parts


def drained(workers: Sequence[SeenWorker], target: int) -> list[WorkerId]:
    """Workers that end if so many stay: ones that start, then those whose caches save least, then the idlest."""
    staying = [worker for worker in workers if not worker.draining]
    staying.sort(key=lambda w: (w.ready, w.reused_tokens_per_s, w.requests, w.id))
    return [worker.id for worker in staying[: max(0, len(staying) - target)]]
