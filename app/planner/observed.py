"""The observations of the planner: a model's traffic in windows, and its pools with their workers."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from app.ids import PoolId, WorkerId
from app.messages.kinds import Role


class Histogram(Struct, frozen=True):
    """A histogram of token counts: bucket i counts those up to `EDGES[i]`, the last one all above."""

    counts: list[int]
    total: int  # the sum of what was counted: the mean is exact


# Upper bounds of the buckets, in tokens: four to a factor of two.
EDGES = tuple(round(2 ** (i / 4)) for i in range(4 * 18))


TRAFFIC_WINDOW_S = 10.0  # of what API replicas count


class Traffic(Struct, frozen=True):
    """A model's requests in one window; aside requests (lines of batches) are not among them."""

    begin: float  # unix time, seconds
    seconds: float
    arrivals: int
    prompts: Histogram  # tokens of each that no cache had, of requests that began to answer
    answers: Histogram  # output tokens, of requests that ended
    met: int = 0  # of those that ended: first token and tokens after it within the objective
    ended: int = 0


class Speed(Struct, frozen=True):
    """The speed of one worker of a pool, as measured.

    A worker that decodes `n` requests takes `step_s + n * request_step_s`.
    """

    prefill_tokens_per_s: float
    step_s: float  # seconds of a decode step with one request, without what each request adds
    request_step_s: float  # seconds that each request adds to it
    seats: int  # requests at once
    start_s: float  # from being asked for to its first request


class SeenWorker(Struct, frozen=True):
    id: WorkerId
    ready: bool  # in routing; else it starts, sleeps or drains
    draining: bool
    requests: int  # running and queued
    reused_tokens_per_s: float  # prompt tokens that its cache saved lately: what is lost with it


class SeenPool(Struct, frozen=True):
    pool: PoolId
    model: str
    role: Role
    speed: Speed
    workers: Sequence[SeenWorker]
    wanted: int  # workers asked for by the last plan, or running before the first
    gpus: int = 1  # of one worker
    aside: bool = False  # lines of batches, or other aside requests, run or wait for its model


class Objective(Struct, frozen=True):
    """The latencies that a share of a model's requests gets."""

    ttft_s: float
    itl_s: float  # the mean of a request's inter-token latencies
    share: float = 0.99


class ScaleLimits(Struct, frozen=True):
    least: Mapping[PoolId, int]
    most: Mapping[PoolId, int]
    gpus: int | None = None  # of all pools together
