"""Computes which share of requests some workers serve within an objective: a queueing model of one pool.

The router balances well: all workers have the same number of requests. A worker decodes as a processor that its
requests share: with `k` of them a step takes `step_s + k * request_step_s`. The number of requests then has the product
form of a symmetric queue, whatever the answers' lengths (Kelly, Reversibility and Stochastic Networks, 1979, ch. 3).
Prefills interrupt decoding in a pool of both. A request's interruptions are compound Poisson: none, or a gamma
distribution of their mean and variance, with Wilson's and Hilferty's approximation of its tail (1931). Before its
prefill a request waits as in M/G/n: Erlang's C, and an exponential tail whose mean is Allen's and Cunneen's (Allen,
Probability, Statistics and Queueing Theory, 1990, ch. 5).
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from app.messages.kinds import Role
from app.planner.observed import EDGES, Histogram, Objective, Speed

_POINTS = 8  # of a distribution of lengths
_SLICES = 6  # of the distribution of requests at once

# (value, share) pairs
Points = Sequence[tuple[float, float]]


class Demand(Struct, frozen=True):
    """Lengths of a model's requests, in tokens."""

    prompts: Points  # of the part that no cache has
    answers: Points


def points(histogram: Histogram) -> Points:
    """A histogram as at most `_POINTS` values of equal share, with its exact mean."""
    buckets: list[tuple[float, float]] = []
    count = sum(histogram.counts)
    if not count:
        return []
    for index, n in enumerate(histogram.counts):
        if n:
            above = EDGES[min(index, len(EDGES) - 1)]
            below = EDGES[index - 1] if 0 < index <= len(EDGES) else 0
            buckets.append((max(1.0, math.sqrt(above * max(below, 1))), n / count))
    merged_points: list[tuple[float, float]] = []
    for value, share in buckets:
        if merged_points and merged_points[-1][1] + share <= 1 / _POINTS:
            before, weight = merged_points[-1]
            merged_points[-1] = ((before * weight + value * share) / (weight + share), weight + share)
        else:
            merged_points.append((value, share))
    scale = histogram.total / count / mean(merged_points)
    return [(value * scale, share) for value, share in merged_points]


def mean(of: Points) -> float:
    return sum(value * share for value, share in of)


def attained(rate: float, workers: int, demand: Demand, speed: Speed, objective: Objective, role: Role) -> float:
    """The share of requests within the objective, as far as this pool has to do with it.

    rate: arrivals/s at all workers together; a prefill pool answers for TTFT, a decode pool for ITL.
    """
    if rate <= 0:
        return 1.0
    if workers <= 0:
        return 0.0
    each = rate / workers
    prefills = [] if role == "decode" else [(tokens / speed.prefill_tokens_per_s, p) for tokens, p in demand.prompts]
    busy = each * mean(prefills)
    if busy >= 1:
        return 0.0
    if role == "prefill":
        return _first_in_time(prefills, 0.0, each, workers, objective.ttft_s)
    met_share = 0.0
    for requests, share in _at_once(rate, workers, mean(demand.answers), busy, speed):
        step = speed.step_s + requests / workers * speed.request_step_s
        good = _steady(demand.answers, prefills, step, each, objective.itl_s)
        if role == "both":
            good *= _first_in_time(prefills, step, each, workers, objective.ttft_s)
        met_share += share * good
    return met_share


def _at_once(rate: float, workers: int, tokens: float, busy: float, speed: Speed) -> Points:
    """Requests at once at all workers, of those that found a seat: its shares add up to 1 or less."""
    seats = workers * speed.seats
    work = rate * tokens / (1 - busy)
    if not work:  # all answers were empty
        return [(0.0, 1.0)]
    if work * (speed.step_s + speed.seats * speed.request_step_s) >= seats:
        return []
    logarithm = top = 0.0
    logs = [0.0]
    for k in range(1, seats + 1):
        logarithm += math.log(work * (speed.step_s + k / workers * speed.request_step_s) / k)
        logs.append(logarithm)
        top = max(top, logarithm)
        if logarithm < top - 20:
            break
    weights = [math.exp(x - top) for x in logs]
    total = sum(weights)
    full = weights[-1] / total if len(weights) == seats + 1 else 0.0
    groups, group_share, value = [], 0.0, 0.0
    for k, weight_of in enumerate(weights):
        group_share += weight_of / total
        value += k * weight_of / total
        if group_share >= 1 / _SLICES or k == len(weights) - 1:
            groups.append((value / group_share, group_share * (1 - full)))
            group_share = value = 0.0
    return groups


def _steady(answers: Points, prefills: Points, step: float, rate: float, itl_s: float) -> float:
    """The share of answers whose mean inter-token latency is within `itl_s`: in the time that it allows for the whole
    answer, interruptions leave enough for its steps."""
    spare = itl_s - step
    if spare < 0:
        return 0.0
    first, second = mean(prefills), sum(value**2 * share for value, share in prefills)
    if not first * rate:
        return 1.0
    met_share = 0.0
    for tokens, share in answers:
        if not tokens:  # there is nothing to wait for
            met_share += share
            continue
        allowed_s = tokens * itl_s
        none = math.exp(-rate * allowed_s)
        some = max(1 - none, 1e-12)
        middle = rate * allowed_s * first / some
        square = (rate * allowed_s * second + (rate * allowed_s * first) ** 2) / some
        met_share += share * (none + some * _gamma(tokens * spare, middle, max(square - middle**2, 1e-12)))
    return met_share


def _gamma(value: float, middle: float, variance: float) -> float:
    """The share of a gamma distribution up to a value."""
    shape = middle**2 / variance
    z = ((value / middle) ** (1 / 3) - (1 - 1 / (9 * shape))) * 3 * math.sqrt(shape)
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _first_in_time(prefills: Points, step: float, rate: float, workers: int, ttft_s: float) -> float:
    """The share of first tokens within `ttft_s`: a wait, the end of the step that runs, the prefill with its step."""
    first, second = mean(prefills), sum(value**2 * share for value, share in prefills)
    busy = rate * first
    if not busy:
        return 1.0
    waits = _erlang_c(workers, busy)
    tail_s = second / first / 2 / workers / (1 - busy)  # mean wait of those that wait
    met_share = 0.0
    for seconds, share in prefills:
        spare = ttft_s - seconds - 1.5 * step
        met_share += share * (1 - waits * math.exp(-spare / tail_s) if spare >= 0 else 0.0)
    return met_share


def _erlang_c(workers: int, busy: float) -> float:
    """The probability of waiting with `workers` of which each is busy a share `busy` of the time."""
    load, blocking_probability = workers * busy, 1.0
    for n in range(1, workers + 1):
        blocking_probability = load * blocking_probability / (n + load * blocking_probability)
    return blocking_probability / (1 - busy * (1 - blocking_probability))
