"""The state of all workers as a router observes it, for policies to choose by."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.bench.simulator.engine import Engine
from ops.bench.simulator.requests import Request


@dataclass(slots=True)
class View:
    """A worker, for the request that is to be placed. It is used again for the next one."""

    id: int
    total_blocks: int
    cached_blocks: int = 0  # of the prompt, leading ones, as its KV events tell
    active_requests: int = 0  # not answered yet
    waiting_requests: int = 0  # of these, without a first token
    active_prefill_tokens: int = 0  # that the waiting ones have to compute, as was believed when they were placed
    active_blocks: int = 0  # different ones, of the active requests' prompts
    potential_blocks: int = 0  # the same, with this prompt's


class Views(list[View]):
    """All workers, and the request."""

    now = 0.0
    request_id = 0
    session_id: str | None = None
    input_tokens = 0
    block_size = 0
    stored_blocks = 0  # leading blocks of the prompt in the store that all share


class Router:
    def __init__(self, engine: Engine, workers: int, policy: Any, lag_s: float = 0.0) -> None:
        """`lag_s`: until a KV event is known. `policy`: may have `on_kv_event`, `on_prefill_done`, `on_finish`."""
        self._engine, self._lag_s = engine, lag_s
        self._events: deque[tuple[float, int, Sequence[int], Sequence[int]]] = deque()
        self._caches: dict[int, int] = {}  # by block: a bit for each worker that has it
        self._active: dict[int, int] = {}  # the same, of active requests
        self._counts = [Counter[int]() for _ in range(workers)]  # by worker: active requests by block
        self._on_kv_event = getattr(policy, "on_kv_event", None)
        self._on_prefill_done = getattr(policy, "on_prefill_done", None)
        self._on_finish = getattr(policy, "on_finish", None)
        self.views = Views(View(number, engine.cache_blocks) for number in range(workers))
        self.views.block_size = engine.block_size
        self.store: set[int] | None = None

    def told(self, now: float, worker: int, stored: Sequence[int], removed: Sequence[int]) -> None:
        self._events.append((now + self._lag_s, worker, stored, removed))

    def look(self, request: Request, now: float) -> Views:
        """The workers as they are known now."""
        while self._events and self._events[0][0] <= now:
            self._learn(*self._events.popleft())
        views = self.views
        views.now, views.request_id, views.session_id = now, request.number, request.session
        views.input_tokens = request.prompt
        views.stored_blocks = 0 if self.store is None else _leading(self.store, request.blocks)
        cache_depths, active_depths = (
            _depths(table, request.blocks, len(views)) for table in (self._caches, self._active)
        )
        for view in views:
            view.cached_blocks = cache_depths[view.id]
            view.potential_blocks = view.active_blocks + len(request.blocks) - active_depths[view.id]
        return views

    def _learn(self, at: float, worker: int, stored: Sequence[int], removed: Sequence[int]) -> None:
        bit = 1 << worker
        for block in stored:
            self._caches[block] = self._caches.get(block, 0) | bit
        for block in removed:
            self._caches[block] &= ~bit
        if self._on_kv_event is not None:
            self._on_kv_event(at, worker, stored, removed)

    def assign(self, request: Request, worker: int) -> None:
        view, counts = self.views[worker], self._counts[worker]
        request.worker = worker
        request.expected = request.prompt - min(view.cached_blocks * self._engine.block_size, request.prompt - 1)
        view.active_requests += 1
        view.waiting_requests += 1
        view.active_prefill_tokens += request.expected
        for block in request.blocks:
            counts[block] += 1
            self._active[block] = self._active.get(block, 0) | 1 << worker
        view.active_blocks = len(counts)

    def computed(self, request: Request, now: float) -> None:
        view = self.views[request.worker]
        view.waiting_requests -= 1
        view.active_prefill_tokens -= request.expected
        if self._on_prefill_done is not None:
            self._on_prefill_done(now, request.number, request.worker)

    def answered(self, request: Request, now: float) -> None:
        view, counts = self.views[request.worker], self._counts[request.worker]
        view.active_requests -= 1
        for block in request.blocks:
            counts[block] -= 1
            if not counts[block]:
                del counts[block]
                self._active[block] &= ~(1 << request.worker)
        view.active_blocks = len(counts)
        if self._on_finish is not None:
            self._on_finish(now, request.number, request.worker)


def _leading(store: set[int], blocks: Sequence[int]) -> int:
    return next((index for index, block in enumerate(blocks) if block not in store), len(blocks))


def _depths(table: Mapping[int, int], blocks: Sequence[int], workers: int) -> list[int]:
    """Numbers of leading blocks, by worker. `table`: a bit for each worker, by block."""
    depths, going = [len(blocks)] * workers, (1 << workers) - 1
    for index, block in enumerate(blocks):
        has = table.get(block, 0)
        lost_bits, going = going & ~has, going & has
        while lost_bits:
            worker = lost_bits.bit_length() - 1
            depths[worker] = index
            lost_bits ^= 1 << worker
        if not going:
            break
    return depths
