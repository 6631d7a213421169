"""A simulated worker: its prefills in line, its running answers, and its cache.

Between two events its speeds do not change, so that it is moved from event to event, exactly.
"""

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from math import inf
from typing import Literal

from ops.bench.simulator.engine import Engine
from ops.bench.simulator.requests import Request

Told = Callable[[float, int, Sequence[int], Sequence[int]], None]  # when, worker, blocks stored, blocks removed
_LEFT = 1e-6  # tokens, below which work is done


class Cache:
    """Blocks: of running requests, which stay, and the others, of which the least recently used go, leaves first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pinned: Counter[int] = Counter()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._unnamed = 0  # of prompts and answers that are being computed

    def hit(self, blocks: Sequence[int]) -> int:
        return sum(1 for _ in takewhile(lambda block: block in self._pinned or block in self._idle, blocks))

    def take(self, blocks: Sequence[int], hit: int, new: int) -> list[int] | None:
        """Pins the `hit` leading blocks, and makes room for `new` others. None: there is none.

        Returns the blocks that go.
        """
        idle_hits = sum(block not in self._pinned for block in blocks[:hit])
        if len(self._pinned) + idle_hits + self._unnamed + new > self._size:
            return None
        for block in blocks[:hit]:
            self._idle.pop(block, None)
            self._pinned[block] += 1
        self._unnamed += new
        surplus = len(self._pinned) + len(self._idle) + self._unnamed - self._size
        return [self._idle.popitem(last=False)[0] for _ in range(surplus)]

    def computed(self, blocks: Sequence[int]) -> list[int]:
        """Names blocks of a prompt that were computed, and pins them. Returns those that are new."""
        new_blocks = []
        for block in blocks:
            if block in self._idle:
                del self._idle[block]
            elif block not in self._pinned:
                new_blocks.append(block)
            self._pinned[block] += 1
        self._unnamed -= len(blocks)
        return new_blocks

    def leave(self, blocks: Sequence[int], unnamed: int) -> None:
        """Lets a request's blocks go, its last ones first."""
        self._unnamed -= unnamed
        for block in reversed(blocks):
            self._pinned[block] -= 1
            if not self._pinned[block]:
                del self._pinned[block]
                self._idle[block] = None


class Worker:
    def __init__(self, number: int, engine: Engine, told: Told, store: set[int] | None) -> None:
        """`store`: blocks that all workers share; None: there is none."""
        self.number, self._engine, self._told, self._store = number, engine, told, store
        self.queue: deque[Request] = deque()
        self._prefill: Request | None = None
        self._left = 0.0  # tokens of it
        self._running: list[tuple[float, int, Request]] = []  # a heap, by when each has all its tokens
        self._made, self._context = 0.0, 0  # tokens that each running answer has had made since the beginning; tokens
        self._cache: Cache | None = Cache(engine.cache_blocks)
        self._now = 0.0
        self.version = 0  # of the event that is expected of it
        self.work_s = 0.0

    def share_cache(self) -> None:
        """Its cache is infinite, and its callers say what is in it."""
        self._cache = None

    @property
    def backlog_s(self) -> float:
        """The true wait of a new prompt. Only the bound may look."""
        tokens = self._left + sum(request.prompt - request.hit_tokens for request in self.queue)
        return tokens / self._engine.prefill_per_s + self._engine.request_s * len(self._running)

    def _speeds(self) -> tuple[float, float]:
        """Tokens a second: of the prefill, and of each running answer."""
        engine = self._engine
        others_s = engine.step_of(len(self._running), self._context)
        if self._prefill is None:
            return 0.0, 1 / (engine.step_s + others_s)
        step_s = engine.chunk / engine.prefill_per_s + others_s
        return engine.chunk / step_s, 1 / step_s

    def advance(self, now: float) -> None:
        prefill, decode = self._speeds()
        self._left -= prefill * (now - self._now)
        if self._running:
            self._made += decode * (now - self._now)
        self._now = now

    def next_event(self) -> float:
        prefill, decode = self._speeds()
        computed_s = self._left / prefill if self._prefill is not None else inf
        answered_s = (self._running[0][0] - self._made) / decode if self._running else inf
        return self._now + max(0.0, min(computed_s, answered_s))

    def admit(self) -> None:
        """Begins the next prefill, if there is room."""
        engine = self._engine
        if self._prefill is not None or not self.queue or len(self._running) >= engine.max_running:
            return
        request = self.queue[0]
        if self._cache is not None:
            hit = self._cache.hit(request.blocks)
            new = len(request.blocks) - hit + -(-request.answer // engine.block_size)
            evictions = self._cache.take(request.blocks, hit, new)
            if evictions is None:  # it is full of running requests
                return
            if evictions:
                self._told(self._now, self.number, [], evictions)
            request.hit, request.hit_tokens = hit, min(hit * engine.block_size, request.prompt - 1)
        self.queue.popleft()
        self._prefill = request
        self._left = request.prompt - request.hit_tokens + engine.step_s * engine.prefill_per_s
        self._load(request)
        self.work_s += engine.work_s(request.prompt, request.answer, request.hit_tokens)

    def _load(self, request: Request) -> None:
        """Takes from the store what is behind the cached blocks, if that is faster than computing it.

        A load stands in the line of prefills, as if nothing were computed meanwhile: engines do better.
        """
        engine = self._engine
        if self._store is None or engine.store_s >= engine.block_size / engine.prefill_per_s:
            return
        store_hits = sum(1 for _ in takewhile(self._store.__contains__, request.blocks[request.hit :]))
        tokens = min((request.hit + store_hits) * engine.block_size, request.prompt - 1) - request.hit_tokens
        if store_hits:
            self._left += store_hits * engine.store_s * engine.prefill_per_s - tokens
            request.hit_tokens += tokens

    def step(self, now: float) -> Iterator[tuple[Literal["computed", "answered"], Request]]:
        """All that is due now."""
        self.advance(now)
        request = self._prefill
        if request is not None and self._left <= _LEFT:
            self._prefill = None
            if self._cache is not None:
                self._told(now, self.number, self._cache.computed(request.blocks[request.hit :]), [])
            if self._store is not None:
                self._store.update(request.blocks)
            request.first = now
            yield "computed", request
            request.context = request.prompt + request.answer // 2
            self._context += request.context
            heapq.heappush(self._running, (self._made + request.answer - 1, request.number, request))
        while self._running and self._running[0][0] <= self._made + _LEFT:
            _, _, request = heapq.heappop(self._running)
            self._context -= request.context
            request.done = now
            if self._cache is not None:
                self._cache.leave(request.blocks, -(-request.answer // self._engine.block_size))
            yield "answered", request
        self.admit()
