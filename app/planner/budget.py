"""Computes the share that a plan has to attain now, so that the objective's is met over a day with few workers.

The objective allows a number of misses. Most hours need none of them: workers come in whole numbers, and the smallest
that is enough is mostly more than enough. What these hours leave over is spent where one worker more would save few: a
plan may then miss up to `_WORST` times the allowed share. As the budget is spent, plans come back to the objective; if
more was missed, they attain more.
"""

from collections.abc import Sequence

from app.planner.observed import Objective, Traffic

_DAY_S = 86400.0
_WORST = 20.0  # times the allowed share of misses
_SPARED = 0.4  # of the budget: what the plan's own errors may cost
_PRIOR = 500  # requests that missed as allowed, before any were observed: a beginning is careful


def least_share(traffic: Sequence[Traffic], objective: Objective) -> float:
    """The share of requests that a plan has to attain. traffic: ascending; its last day counts."""
    allowed_share = 1 - objective.share
    day = [window for window in traffic if window.begin > traffic[-1].begin - _DAY_S]
    ended_count = sum(window.ended for window in day) + _PRIOR
    miss_count = sum(window.ended - window.met for window in day) + _PRIOR * allowed_share
    remaining_share = 1 - miss_count / max(ended_count * allowed_share, 1e-9)
    times = (
        1 + (_WORST - 1) * min(1.0, remaining_share / _SPARED) if remaining_share > 0 else max(0.1, 1 + remaining_share)
    )
    return 1 - min(allowed_share * times, max(allowed_share, 0.5))
