"""Forecasts how many requests a second to expect, and how far that may be off.

Several simple forecasters run over the last hour; the one that would have forecast it best is believed, and its errors
of that hour say how uncertain it is. A forecaster smooths arrivals exponentially with a memory of its own, with or
without a trend (Brown, Smoothing, Forecasting and Prediction, 1963: double smoothing), or follows the shape that the
same time of the day before had.
"""

import math
from bisect import bisect_right
from collections import deque
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

    def __init__(self, memory_s: float, trend: bool, shape: Callable[[float], float] | None = None) -> None:
        self.kind: Kind = "yesterday" if shape else "trend" if trend else "traffic"
        self.likelihood = 0.0  # Poisson, logarithmic
        self._memory_s, self._trend, self._shape = memory_s, trend, shape
        self._once = self._twice = self._seconds = 0.0
        self._weight = self._squares = 0.0

    def follow(self, windows: Sequence[Traffic], horizon_s: float) -> None:
        """Takes all windows, each compared with what was foretold `horizon_s` before."""
        foretold: deque[tuple[float, float]] = deque()  # (time, arrivals/s)
        for number, window in enumerate(windows):
            middle, seconds, prediction = window.begin + window.seconds / 2, window.seconds, None
            while foretold and foretold[0][0] <= middle:
                prediction = foretold.popleft()[1]
            if prediction is not None and number >= _FIRST:
                self._score(max(prediction * seconds, 0.1), window.arrivals, math.exp(-seconds / _SCORED_S))
            self._add(window.arrivals / seconds / (self._shape(middle) if self._shape else 1.0), seconds)
            end = window.begin + seconds
            foretold.append((end + horizon_s, self.ahead(end, horizon_s)))

    def ahead(self, now: float, horizon_s: float) -> float:
        """Arrivals/s at a time after now."""
        if self._trend:
            slope = (self._once - self._twice) / self._memory_s  # per second
            return max(0.0, 2 * self._once - self._twice + slope * horizon_s)
        return self._once * self._shape(now + horizon_s) if self._shape else self._once

    def error(self) -> float:
        """The standard deviation of what chance doesn't explain, as a share of the rate."""
        if not self._weight:
            return _UNKNOWN_ERROR
        return math.sqrt(max(self._squares / self._weight, _LEAST_ERROR**2))

    def _add(self, rate: float, seconds: float) -> None:
        """Adds a rate to the smoothed ones, which are plain means while the memory is not full yet."""
        self._seconds = self._seconds * math.exp(-seconds / self._memory_s) + seconds
        part = seconds / self._seconds
        self._once += part * (rate - self._once)
        self._twice += part * (self._once - self._twice)

    def _score(self, expectation: float, arrivals: int, weight: float) -> None:
        self.likelihood = self.likelihood * weight + arrivals * math.log(expectation) - expectation
        self._weight = self._weight * weight + expectation**2
        self._squares = self._squares * weight + (arrivals - expectation) ** 2 - expectation


def forecast(traffic: Sequence[Traffic], horizon_s: float, later_s: float) -> tuple[Forecast, Forecast]:
    """Arrivals/s `horizon_s` and `later_s` after the last window, by the forecaster that is best at `horizon_s`.

    traffic: ascending; coarse windows before fine ones.
    """
    recent = [window for window in traffic if window.seconds <= _FINE_S]
    if not recent:
        rate = traffic[-1].arrivals / traffic[-1].seconds if traffic else 0.0
        return Forecast(rate, _UNKNOWN_ERROR, "traffic"), Forecast(rate, _UNKNOWN_ERROR, "traffic")
    forecasters = [_Forecaster(memory, trend) for memory in _MEMORIES_S for trend in (False, True)]
    shape = _shape(traffic)
    if shape is not None:
        forecasters += [_Forecaster(memory, False, shape) for memory in _MEMORIES_S]
    for forecaster in forecasters:
        forecaster.follow(recent, horizon_s)
    best = max(forecasters, key=lambda f: f.likelihood)
    end = recent[-1].begin + recent[-1].seconds
    error = best.error()
    soon, later = (Forecast(best.ahead(end, ahead), error, best.kind) for ahead in (horizon_s, later_s))
    return soon, later


def _shape(traffic: Sequence[Traffic]) -> Callable[[float], float] | None:
    """Arrivals/s around a time of the day before; None if nobody watched then."""
    if not traffic or traffic[0].begin > traffic[-1].begin - DAY_S:
        return None
    ends, arrivals, begins = [], [0], [w.begin for w in traffic]
    for window in traffic:
        ends.append(window.begin + window.seconds)
        arrivals.append(arrivals[-1] + window.arrivals)

    def until(at: float) -> float:
        index = min(bisect_right(begins, at), len(traffic)) - 1
        if index < 0:
            return 0.0
        window = traffic[index]
        part = min(1.0, (at - window.begin) / window.seconds)
        return arrivals[index] + part * window.arrivals

    def rate(at: float) -> float:
        before = at - DAY_S
        return max((until(before + _SHAPE_S) - until(before - _SHAPE_S)) / (2 * _SHAPE_S), 1e-3)

    return rate
