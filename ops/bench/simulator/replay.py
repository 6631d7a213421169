"""The replay of a trace by one policy, and its figures."""

import heapq
import time
from collections import deque
from dataclasses import dataclass
from itertools import count, takewhile
from math import inf
from typing import Any

import numpy as np

from ops.bench.simulator.engine import Engine
from ops.bench.simulator.policies import ORACLE, policy_of
from ops.bench.simulator.requests import Request, Trace
from ops.bench.simulator.router import Router
from ops.bench.simulator.worker import Worker

_FIRST_MINUTE_S = 60.0  # over which the first sessions begin


class CannotReplay(Exception):
    """The trace does not fit the fleet; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    engine: Engine
    workers: int
    pace: float  # of the trace's arrivals; of sessions, how many are live for each worker
    seed: int = 0
    lag_s: float = 0.0  # until a router knows of a KV event
    warm_up: float = 0.1  # of the requests, the first ones, which do not count


@dataclass(order=True, slots=True)
class _Event:
    at: float
    order: int
    version: int  # of a worker's event: it counts if the worker expects no other since
    of: Any


class Replay:
    def __init__(self, trace: Trace, setting: Setting, policy: str) -> None:
        """Raises: LookupError, CannotReplay."""
        engine, self._setting, self._trace, self._policy = setting.engine, setting, trace, policy
        self._is_oracle = policy == ORACLE
        most_blocks = max(len(r.blocks) + -(-r.answer // engine.block_size) for r in trace.requests)
        if most_blocks > engine.cache_blocks and not self._is_oracle:
            raise CannotReplay(f"a request needs {most_blocks} blocks: raise --cache-blocks")
        self._choose = policy_of(policy, setting.workers, engine.block_size, setting.seed)
        self._router = Router(engine, setting.workers, self._choose, setting.lag_s)
        self._router.store = set() if engine.store_s else None
        self._workers = [
            Worker(number, engine, self._router.told, self._router.store) for number in range(setting.workers)
        ]
        self._seen: set[int] = set()  # blocks of the oracle's cache
        if self._is_oracle:
            for worker in self._workers:
                worker.share_cache()
        self._order = count()
        self._events: list[_Event] = []
        self._sessions: deque[Request] = deque()  # that have not begun
        self._drains = inf  # when no session is left to begin
        self._arrivals: list[Request] = []
        self._spreads: list[float] = []
        self._choosing_s = 0.0

    def run(self) -> dict[str, Any]:
        """Raises: CannotReplay."""
        self._begin()
        while self._events:
            event = heapq.heappop(self._events)
            if isinstance(event.of, Request):
                self._place(event.of, event.at)
            elif event.version == event.of.version:
                self._step(event.of, event.at)
        return self._figures()

    def _begin(self) -> None:
        heads, pace = self._trace.heads, self._setting.pace
        if not self._trace.is_closed:
            for request in heads:
                self._come(request, request.start / pace)
            return
        live = max(1, round(pace * self._setting.workers))
        if live >= len(heads):
            raise CannotReplay(f"{live} live sessions need a trace of more than {len(heads)}: lower --sessions")
        for index, request in enumerate(heads[:live]):
            self._come(request, _FIRST_MINUTE_S * index / live)
        self._sessions.extend(heads[live:])

    def _come(self, request: Request, at: float) -> None:
        heapq.heappush(self._events, _Event(at, next(self._order), 0, request))

    def _expect(self, worker: Worker) -> None:
        worker.version += 1
        if (at := worker.next_event()) < inf:
            heapq.heappush(self._events, _Event(at, next(self._order), worker.version, worker))

    def _step(self, worker: Worker, now: float) -> None:
        for what, request in worker.step(now):
            if what == "computed":
                self._router.computed(request, now)
                continue
            self._router.answered(request, now)
            if request.next is not None:
                self._come(request.next, now + request.next.delay_s)
            elif self._sessions:
                self._come(self._sessions.popleft(), now)
            elif request.session is not None:
                self._drains = min(self._drains, now)
        self._expect(worker)

    def _place(self, request: Request, now: float) -> None:
        request.arrival = now
        self._arrivals.append(request)
        views = self._router.look(request, now)
        if self._is_oracle:
            index = self._shortest(request, now)
        else:
            began = time.perf_counter()
            index = int(self._choose(request.blocks, views))
            self._choosing_s += time.perf_counter() - began
            request.hit_tokens = 0
        self._router.assign(request, index)
        active = np.array([view.active_requests for view in views])
        self._spreads.append(float(active.std() / active.mean()))
        worker = self._workers[index]
        worker.advance(now)
        worker.queue.append(request)
        worker.admit()
        self._expect(worker)

    def _shortest(self, request: Request, now: float) -> int:
        request.hit = sum(1 for _ in takewhile(self._seen.__contains__, request.blocks))
        request.hit_tokens = min(request.hit * self._setting.engine.block_size, request.prompt - 1)
        self._seen.update(request.blocks)
        for worker in self._workers:
            worker.advance(now)
        return min(range(len(self._workers)), key=lambda index: self._workers[index].backlog_s)

    def _figures(self) -> dict[str, Any]:
        arrivals = self._arrivals
        steady_requests = [
            r for r in arrivals[int(len(arrivals) * self._setting.warm_up) :] if r.arrival <= self._drains
        ]
        if len(steady_requests) < 2:
            raise CannotReplay("no steady stretch is left to measure: lower --sessions or --workers")
        start, end = steady_requests[0].arrival, steady_requests[-1].arrival
        ttft_s = np.array([request.first - request.arrival for request in steady_requests])
        gaps_s = [(r.done - r.first) / (r.answer - 1) for r in steady_requests if r.answer > 1] or [0.0]
        work_s = np.array([worker.work_s for worker in self._workers])
        return {
            "policy": self._policy,
            "workers": self._setting.workers,
            "hit": sum(r.hit for r in steady_requests) / sum(len(r.blocks) for r in steady_requests),
            "token_hit": sum(r.hit_tokens for r in steady_requests) / sum(r.prompt for r in steady_requests),
            "ttft_mean": float(ttft_s.mean()),
            **{f"ttft_p{p}": float(np.percentile(ttft_s, p)) for p in (50, 90, 99)},
            "itl_mean": float(np.mean(gaps_s)),
            "requests_per_s": sum(start <= r.done <= end for r in arrivals) / (end - start),
            "busy": float(work_s.mean() / max(request.done for request in arrivals)),
            "imbalance": float(work_s.max() / work_s.mean()),
            "load_cv": float(np.mean(self._spreads)),
            "measured": len(steady_requests),
            "us_per_route": 1e6 * self._choosing_s / len(arrivals),
        }


def pace_of(trace: Trace, uncached: float, workers: int, load: float, sessions: float) -> float:
    """`uncached`: as in `bounds`. `load`: of all workers, without a cache; `sessions`: live ones for each worker."""
    return sessions if trace.is_closed else workers * load / uncached
