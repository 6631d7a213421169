"""A simulated fleet of one model under a planner: workers start and drain; requests go where least is to be done."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.ids import PoolId, WorkerId
from app.planner.decision import decide
from app.planner.observed import EDGES, Histogram, Objective, ScaleLimits, SeenPool, SeenWorker, Speed, Traffic
from ops.bench.planner.engine import SEATS, Measured, Request, Worker

WINDOW_S = 10.0
OBJECTIVE = Objective(ttft_s=0.5, itl_s=0.025, share=0.99)
POOL, MODEL = PoolId("pool"), "model"
MOST = 64
FIRST = 2  # workers at the beginning, as in Dynamo's replay
START_S = 30.0  # that goals are set for

# (time in s, workers wanted so far, the fleet) → workers wanted
Planner = Callable[[float, int, "Fleet"], int]


@dataclass
class Outcome:
    attained: float
    workers: float  # mean, from being asked for to the end
    wanted: list[int]  # in each window
    met: list[tuple[int, int]] = field(default_factory=list)  # of those that arrived in each window: met, all


class Fleet:
    """A fleet of workers that do both. `run` plays a trace once."""

    def __init__(self, start_s: float, first: int) -> None:
        self.start_s = start_s
        self.measured = Measured()
        self.workers = [Worker(0.0, self.measured) for _ in range(first)]
        self.windows: list[Traffic] = []
        self._spent = 0.0
        self._arrived = 0
        self._ended: list[Request] = []

    def run(self, requests: Sequence[Request], seconds: float, planner: Planner) -> Outcome:
        target, plan, at = len(self.workers), [], 0.0
        index = 0
        while at < seconds or self._busy():
            if at < seconds:
                target = planner(at, target, self)
                self._scale(at, target)
                plan.append(target)
            end = at + WINDOW_S
            while index < len(requests) and requests[index].at < end:
                self._place(requests[index])
                index += 1
            self._tick(end)
            at = end
            if at > seconds + 3600:
                break
        counts_by_window: dict[int, list[int]] = {}
        for request in requests:
            counts = counts_by_window.setdefault(int(request.at // WINDOW_S), [0, 0])
            counts[0] += request.met(OBJECTIVE.ttft_s, OBJECTIVE.itl_s)
            counts[1] += 1
        by_window = [tuple(counts_by_window.get(i, (0, 0))) for i in range(len(plan))]
        good = sum(m for m, _ in by_window) / max(1, len(requests))
        return Outcome(good, self._spent / seconds, plan, by_window)  # type: ignore[arg-type]

    def _busy(self) -> bool:
        return any(worker.running or worker.waiting for worker in self.workers)

    def _place(self, request: Request) -> None:
        self._arrived += 1
        serving = [w for w in self.workers if not w.draining and w.ready_at <= request.at]
        serving = serving or [w for w in self.workers if not w.draining] or self.workers
        for worker in serving:
            worker.advance(request.at)
        min(serving, key=Worker.load).add(request)

    def _scale(self, now: float, wanted: int) -> None:
        staying = [w for w in self.workers if not w.draining]
        for _ in range(wanted - len(staying)):
            self.workers.append(Worker(now + self.start_s, self.measured))
        leaving = sorted(staying, key=lambda w: (w.ready_at <= now, len(w.running) + len(w.waiting)))
        for worker in leaving[: max(0, len(staying) - wanted)]:
            worker.draining = True

    def _tick(self, end: float) -> None:
        for worker in self.workers:
            worker.advance(end)
            self._ended += worker.ended
            worker.ended.clear()
        self._spent += WINDOW_S * len(self.workers)
        self.workers = [w for w in self.workers if not w.draining or w.running or w.waiting]
        self.windows.append(
            Traffic(
                end - WINDOW_S, WINDOW_S, self._arrived,
                histogram([r.prompt for r in self._ended]), histogram([r.answer for r in self._ended]),
                sum(r.met(OBJECTIVE.ttft_s, OBJECTIVE.itl_s) for r in self._ended), len(self._ended),
            )
        )  # fmt: skip
        self._arrived, self._ended = 0, []

    def speed(self) -> Speed:
        """The speed that its workers have measured so far.

        A straight line goes through the steps' times by requests at once.
        """
        m = self.measured
        if not m.prefilling_s or not m.steps:
            return Speed(0, 0, 0, SEATS, self.start_s)
        spread = m.k2 - m.k**2 / m.steps
        each = (m.ks - m.k * m.s / m.steps) / spread if spread > 0 else 0.0
        return Speed(m.prefilled / m.prefilling_s, (m.s - each * m.k) / m.steps, each, SEATS, self.start_s)


def histogram(lengths: Sequence[int]) -> Histogram:
    counts = [0] * (len(EDGES) + 1)
    for length in lengths:
        counts[bisect.bisect_left(EDGES, length)] += 1
    return Histogram(counts, sum(lengths))


def ours(now: float, wanted: int, fleet: Fleet) -> int:
    """The planner itself, with what it would have seen: windows of the last hour."""
    if not fleet.windows:
        return wanted
    workers = [
        SeenWorker(WorkerId(str(i)), w.ready_at <= now, w.draining, len(w.running) + len(w.waiting), 0.0)
        for i, w in enumerate(fleet.workers)
    ]
    pool = SeenPool(POOL, MODEL, "both", fleet.speed(), workers, wanted)
    traffic = {MODEL: fleet.windows[-360:]}
    return decide(now, traffic, [pool], {MODEL: OBJECTIVE}, ScaleLimits({POOL: 1}, {POOL: MOST}))[0].workers


def fixed(_now: float, wanted: int, _fleet: Fleet) -> int:
    return wanted


def following(plan: Sequence[int]) -> Planner:
    """A plan known beforehand: workers wanted in each window."""
    return lambda now, _wanted, _fleet: plan[min(int(now // WINDOW_S), len(plan) - 1)]
