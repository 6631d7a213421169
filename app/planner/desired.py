"""The state that a planner wants of a pool, for all others to read: JSON in `desired:<pool>`."""

import msgspec
from msgspec import Struct

from app.ids import WorkerId
from app.planner.plan import Reason


class Desired(Struct, frozen=True):
    workers: int
    reason: Reason
    decision: int  # rises whenever `workers` or `drain` change: ms since the epoch of that change
    at: float  # when it was last decided, seconds since the epoch
    act: bool  # else it is advice: nobody is to follow it
    drain: list[WorkerId] = []  # which workers are to end first, in this order
    arrivals_per_s: float = 0.0  # that are expected
    problem: str = ""  # why the scaler could not do it


encode_desired = msgspec.json.encode
decode_desired = msgspec.json.Decoder(Desired).decode
