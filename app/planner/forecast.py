"""How many requests a second to expect, and how far that may be off.

Several simple forecasters run over the last hour; the one that would have forecast it best is believed, and its errors
of that hour say how uncertain it is. A forecaster smooths arrivals exponentially with a memory of its own, with or
without a trend (Brown, Smoothing, Forecasting and Prediction, 1963: double smoothing), or follows the shape that the
same time of the day before had.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from app.planner.observed import Traffic

DAY_S = 86400.0
_FINE_S = 60.0  # windows up to this length are the recent ones
_SHAPE_S = 900.0  # yesterday's shape is the rate around a time, this far to both sides
_MEMORIES_S = (30.0, 60.0, 120.0, 240.0, 480.0)
_SCORED_S = 1800.0  # memory of a forecaster's score
_FIRST = 12  # windows before a forecaster is scored
_LEAST_ERROR = 0.03  # of the rate: nothing is known better
_UNKNOWN_ERROR = 0.3  # of the rate, before anything was scored

Kind = Literal["traffic", "trend", "yesterday"]


class Forecast(Struct, frozen=True):
    rate: float  # arrivals/s
    error: float  # its standard deviation, as a share of the rate
    kind: Kind


class _Forecaster:
    """Smoothed arrivals/s, and how well they foretold."""

    def __init__(self, memory_s: float, trend: bool) -> None:
        self.kind: Kind = "trend" if trend else "traffic"
        self._memory_s, self._trend = memory_s, trend
        self._once = self._twice = self._seconds = 0.0
        self._score = self._weight = self._squares = 0.0

    def add(self, rate: float, seconds: float) -> None:
        """A window's arrivals/s. The first windows count fully: the mean of a memory that is not full yet."""
        self._seconds = kept = self._seconds * math.exp(-seconds / self._memory_s) + seconds
        part = seconds / kept
        self._once += part * (rate - self._once)
        self._twice += part * (self._once - self._twice)

    def ahead(self, horizon_s: float) -> float:
        if not self._trend:
            return self._once
        lead = (self._once - self._twice) / self._memory_s  # per second
        return max(0.0, 2 * self._once - self._twice + lead * horizon_s)

    def score(self, foretold: float, arrivals: int, seconds: float) -> None:
        """Poisson log-likelihood, and the squared error that chance doesn't explain."""
        kept = math.exp(-seconds / _SCORED_S)
        expected = max(foretold * seconds, 0.1)
        self._score = self._score * kept + arrivals * math.log(expected) - expected
        self._weight = self._weight * kept + expected**2
        self._squares = self._squares * kept + (arrivals - expected) ** 2 - expected

    def error(self) -> float:
        if not self._weight:
            return _UNKNOWN_ERROR
        return math.sqrt(max(self._squares / self._weight, _LEAST_ERROR**2))

    def likelihood(self) -> float:
        return self._score


def forecast(traffic: Sequence[Traffic], horizon_s: float) -> Forecast:
    """Arrivals/s `horizon_s` after the last window. `traffic`: ascending; coarse windows before fine ones."""
    recent = [window for window in traffic if window.seconds <= _FINE_S]
    if not recent:
        last = traffic[-1] if traffic else None
        return Forecast(last.arrivals / last.seconds if last else 0.0, _UNKNOWN_ERROR, "traffic")
    shape = _shape(traffic)
    forecasters = [_Forecaster(memory, trend) for memory in _MEMORIES_S for trend in (False, True)]
    if shape is not None:
        shaped = [_Forecaster(memory, False) for memory in _MEMORIES_S]
        for forecaster in shaped:
            forecaster.kind = "yesterday"
        forecasters += shaped
    found = [_followed(forecaster, recent, horizon_s, shape) for forecaster in forecasters]
    best = max(range(len(found)), key=lambda i: forecasters[i].likelihood())
    return Forecast(found[best], forecasters[best].error(), forecasters[best].kind)


def _followed(
    forecaster: _Forecaster, windows: Sequence[Traffic], horizon_s: float, shape: Callable[[float], float] | None
) -> float:
    """What the forecaster says at the end, after being scored on all windows."""
    relative = shape if forecaster.kind == "yesterday" and shape is not None else lambda _at: 1.0
    waiting: list[tuple[float, float]] = []  # (time foretold, arrivals/s foretold)
    said = next_one = 0.0
    for number, window in enumerate(windows):
        middle = window.begin + window.seconds / 2
        while waiting and waiting[0][0] <= middle:
            next_one = waiting.pop(0)[1]
            if number >= _FIRST and (not waiting or waiting[0][0] > middle):
                forecaster.score(next_one, window.arrivals, window.seconds)
        forecaster.add(window.arrivals / window.seconds / relative(middle), window.seconds)
        ahead = window.begin + window.seconds + horizon_s
        said = forecaster.ahead(horizon_s) * relative(ahead)
        waiting.append((ahead, said))
    return said


def _shape(traffic: Sequence[Traffic]) -> Callable[[float], float] | None:
    """Arrivals/s around a time of the day before; None if nobody watched then."""
    if not traffic or traffic[0].begin > traffic[-1].begin - DAY_S:
        return None
    ends, arrived, begun = [], [0], [w.begin for w in traffic]
    for window in traffic:
        ends.append(window.begin + window.seconds)
        arrived.append(arrived[-1] + window.arrivals)

    def until(at: float) -> float:
        index = min(bisect_right(begun, at), len(traffic)) - 1
        if index < 0:
            return 0.0
        window = traffic[index]
        part = min(1.0, (at - window.begin) / window.seconds)
        return arrived[index] + part * window.arrivals

    def rate(at: float) -> float:
        before = at - DAY_S
        return max((until(before + _SHAPE_S) - until(before - _SHAPE_S)) / (2 * _SHAPE_S), 1e-3)

    return rate
