"""The planner's decision for a pool."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from app.ids import PoolId, WorkerId

# Why a pool gets so many workers: a label of metrics, explained in the guide.
Reason = Literal["traffic", "trend", "yesterday", "batch", "least", "most", "gpus", "unmeasured", "unattainable"]


class PoolPlan(Struct, frozen=True):
    pool: PoolId
    workers: int  # wanted
    reason: Reason
    drain: Sequence[WorkerId] = ()  # if fewer are wanted: these, in this order; the least valuable cache first
    arrivals_per_s: float = 0.0  # expected at the horizon
