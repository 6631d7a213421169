"""Days to plan: the trace's, with arrivals and lengths drawn again by a seed, and made ones of other shapes."""

import gzip
import json
import math
import random
from collections.abc import Callable, Sequence

from ops.bench.load import trace as trace_file
from ops.bench.planner.engine import Request

TRACE = "servegen_day_dev.jsonl.gz"
_RATE_S = 50.0  # the trace's rate is constant so long


def trace(name: str = TRACE) -> list[Request]:
    """Raises: Unavailable, SettingsError."""
    with gzip.open(trace_file(name), "rt") as rows:
        return [
            Request(row["timestamp"] / 1000, max(1, row["input_length"]), max(2, row["output_length"]))
            for row in map(json.loads, rows)
        ]


def again(rows: Sequence[Request], seed: int) -> list[Request]:
    """The trace once more: seed 0 as it is; else as many requests in each window of constant rate, at any time in it:
    as Poisson arrivals are, given their number. Lengths are drawn from the trace's."""
    rng = random.Random(seed)
    requests = []
    for row in rows:
        if seed == 0:
            requests.append(Request(row.at, row.prompt, row.answer))
        else:
            like = rng.choice(rows)
            requests.append(Request((row.at // _RATE_S + rng.random()) * _RATE_S, like.prompt, like.answer))
    return sorted(requests, key=lambda request: request.at)


def drawn(rate: Callable[[float], float], seconds: float, rows: Sequence[Request], seed: int) -> list[Request]:
    """Poisson arrivals at a rate, thinned (Lewis and Shedler, 1979); lengths drawn from `rows`."""
    rng = random.Random(seed)
    most = max(rate(at) for at in range(int(seconds)))
    requests, at = [], 0.0
    while (at := at + rng.expovariate(most)) < seconds:
        if rng.random() * most < rate(at):
            like = rng.choice(rows)
            requests.append(Request(at, like.prompt, like.answer))
    return requests


DAY_S = 7200.0


def made(seed: int) -> dict[str, Callable[[float], float]]:
    """Arrivals/s of days of other shapes, by name."""
    rng = random.Random(seed)
    phase = rng.random() * DAY_S
    noise = [math.exp(rng.gauss(0, 0.25)) for _ in range(int(DAY_S / 100) + 2)]
    bursts = sorted(rng.random() * DAY_S for _ in range(12))

    def sine(at: float) -> float:
        return 6 + 4.5 * math.sin(2 * math.pi * (at + phase) / DAY_S)

    def crowd(at: float) -> float:
        return 4.0 * (2.0 if 3000 <= at < 4200 else 1.0)

    def bursty(at: float) -> float:
        return 4.0 + 5.0 * any(begin <= at < begin + 60 for begin in bursts)

    def ramp(at: float) -> float:
        return 2 + 12 * at / DAY_S

    def noisy(at: float) -> float:
        return sine(at) * noise[int(at / 100)]

    def large(at: float) -> float:
        return 4 * sine(at)

    return {"sine": sine, "crowd": crowd, "bursty": bursty, "ramp": ramp, "noisy": noisy, "large": large}
