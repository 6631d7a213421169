"""Growth of something, as a share of itself in an hour. Pure functions of samples."""

from collections.abc import Sequence
from itertools import combinations
from statistics import median

WARM_UP = 0.25  # of the run: caches fill, and connections are opened
_SPANS = 40
_LEAST = 8  # spans; fewer tell nothing
LEAST_S = 900.0  # of a run: caches still fill in a shorter one
TOO_SHORT = f"a run of less than {LEAST_S / 60:g} minutes says nothing of an hour"

Point = tuple[float, float]  # time in s, value


def growth(points: Sequence[Point], begin: float, end: float) -> float | None:
    """The share of its median by which a value grows in an hour; None if too few points, or too short a time, say so.

    The run's first quarter is left out. The rest is divided into 40 spans, of which each counts with its median: what
    comes and goes within a span, as the keys of one batch, is no growth. The slope is the median of those between all
    pairs of spans (Theil and Sen), so that neither single peaks nor the choice of two ends decide.
    """
    if end - begin < LEAST_S:
        return None
    begin += (end - begin) * WARM_UP
    spans: dict[int, list[Point]] = {}
    for at, value in points:
        if begin <= at < end:
            spans.setdefault(int((at - begin) / (end - begin) * _SPANS), []).append((at, value))
    medians = [(median(at for at, _ in span), median(value for _, value in span)) for span in spans.values()]
    if len(medians) < _LEAST:
        return None
    slope = median((b - a) / (then - now) for (now, a), (then, b) in combinations(sorted(medians), 2))
    usual = median(value for _, value in medians)
    return slope * 3600 / usual if usual else None
