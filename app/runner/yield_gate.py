"""Aside requests wait here until the engine has room for them, and return here when it has none any more.

One gate for each data-parallel rank, on the engine's loop. `yield_policy.py` decides.
"""

import asyncio
from asyncio import Timeout
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic

from app.engines.base import EngineInfo, EngineStats
from app.errors import Returned
from app.ids import RunId
from app.messages.job import Job
from app.messages.lease import Speeds
from app.pools.schema import Aside
from app.runner.yield_policy import EngineLoad, Need, may_enter, pause, taken, too_many

_LOOK_S = 0.05  # how often to look for changes without an event: free blocks, the end of a pause
_PATIENCE_S = 5.0  # after this wait a request goes back, since another worker may have room


class AsideJob:
    """One aside request, waiting or inside."""

    __slots__ = ("computing", "entered", "known", "let_in", "need", "order", "run", "timeout")

    def __init__(self, run: RunId, order: tuple[int, int]) -> None:
        self.run = run
        self.order = order  # lower priorities first, then earlier arrivals
        self.need = Need(0, 0, 0)
        self.let_in: asyncio.Future[None] | None = None  # while it waits
        self.timeout: Timeout | None = None  # while it is inside
        self.entered = 0.0
        self.computing = 0  # tokens of its context, until its first output
        self.known = False  # it has been inside before, so its context is probably cached

    def __lt__(self, other: "AsideJob") -> bool:
        return self.order < other.order


class YieldGate:
    def __init__(
        self, info: EngineInfo, rules: Aside, stats: Callable[[], EngineStats], pace: Callable[[], Speeds]
    ) -> None:
        """`pace`: the engine's prefill speed, and the share of its time that online prompts take."""
        self._info, self._rules, self._stats, self._pace = info, rules, stats, pace
        self._online: dict[RunId, Need] = {}
        self._last_online_end = -inf  # when the last online request ended, monotonic
        self._waiting: list[AsideJob] = []  # the most urgent first
        self._inside: list[AsideJob] = []  # in the order of their entry
        self._count = 0
        self._paused_until = 0.0  # until then nothing enters beside online requests, monotonic
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._inside)

    @property
    def most(self) -> int:
        """Number of aside requests that the worker takes."""
        return taken(self._load(), self._rules)

    @contextmanager
    def online(self, job: Job) -> Iterator[None]:
        """Counts an online request as present meanwhile."""
        self._online[job.run] = self._need(job)
        self.look()
        try:
            yield
        finally:
            del self._online[job.run]
            self._last_online_end = monotonic()
            self.look()

    def computed(self, run: RunId, tokens: int) -> None:
        """A request has its first output, after `tokens` were computed. The engine now counts its blocks as used."""
        if run in self._online:
            self._online[run] = Need(self._online[run].seats, 0, 0)
        for aside_job in self._inside:
            if aside_job.run == run and aside_job.computing:
                aside_job.computing, aside_job.known = 0, True
                self._pause(aside_job, tokens)
        self.look()

    @contextmanager
    def aside_job(self, job: Job) -> Iterator[AsideJob]:
        """Counts an aside request as present meanwhile. Raises: Returned when there are too many."""
        if len(self) >= 2 * self._info.max_running:  # more would use up the threads of online requests
            raise Returned
        self._count += 1
        aside_job = AsideJob(job.run, (job.priority, self._count))
        try:
            yield aside_job
        finally:
            self._leave(aside_job)

    async def enter(self, aside_job: AsideJob, job: Job) -> None:
        """Waits until the request may enter. Raises: Returned when that takes too long."""
        aside_job.need = need = self._need(job)
        if aside_job.known:
            aside_job.need = Need(need.seats, need.blocks, min(need.tokens, self._info.block_size))
        aside_job.let_in = asyncio.get_running_loop().create_future()
        insort(self._waiting, aside_job)
        self.look()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await aside_job.let_in
        except TimeoutError:
            raise Returned from None

    @contextmanager
    def inside(self, aside_job: AsideJob, timeout: Timeout) -> Iterator[None]:
        """Counts the request as on the engine meanwhile. `timeout` expires when it has to give way."""
        aside_job.timeout = timeout
        if aside_job not in self._inside:  # it has to give way before it has begun
            timeout.reschedule(asyncio.get_running_loop().time())
        try:
            yield
        finally:
            aside_job.timeout = None
            self._leave(aside_job)

    def look(self) -> None:
        """Makes requests give way or enter, as `yield_policy` decides."""
        if not self._waiting and not self._inside:
            return
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._tick)
        for _ in range(too_many(self._load(), self._rules, [g.need for g in self._inside])):
            aside_job = self._inside.pop()
            if aside_job.timeout is not None:
                aside_job.timeout.reschedule(asyncio.get_running_loop().time())
        while self._waiting and self._may_enter(self._waiting[0]):
            self._let_in(self._waiting.pop(0))

    def _tick(self) -> None:
        self._timer = None
        self.look()

    def _may_enter(self, aside_job: AsideJob) -> bool:
        if self._online and monotonic() < self._paused_until:
            return False
        computing = sum(g.computing for g in self._inside)
        return may_enter(self._load(), self._rules, aside_job.need, computing, self._pace().prefill_tokens_per_s)

    def _let_in(self, aside_job: AsideJob) -> None:
        aside_job.entered, aside_job.computing = monotonic(), aside_job.need.tokens
        self._pause(aside_job, aside_job.computing)
        self._inside.append(aside_job)
        if aside_job.let_in is not None and not aside_job.let_in.done():
            aside_job.let_in.set_result(None)

    def _pause(self, after: AsideJob, tokens: int) -> None:
        pace = self._pace()
        lasts = pause(tokens, pace.prefill_tokens_per_s, self._stats().step_s, pace.busy, self._rules)
        self._paused_until = after.entered + lasts

    def _leave(self, aside_job: AsideJob) -> None:
        for here in (self._waiting, self._inside):
            if aside_job in here:
                here.remove(aside_job)
        self.look()

    def _load(self) -> EngineLoad:
        stats, info = self._stats(), self._info
        coming = sum(w.blocks for w in self._online.values()) + sum(g.need.blocks for g in self._inside if g.computing)
        return EngineLoad(
            info.max_running,
            info.total_blocks,
            used=stats.used_blocks // info.ranks + coming,
            online=sum(w.seats for w in self._online.values()),
            aside=sum(g.need.seats for g in self._inside),
            step_s=stats.step_s,
            request_step_s=stats.request_step_s,
            quiet_s=monotonic() - self._last_online_end,
        )

    def _need(self, job: Job) -> Need:
        answer_tokens = max((len(b.tokens) for b in job.begun), default=0)
        tokens = job.work + answer_tokens
        blocks = 0 if job.kind != "decode" else -(-tokens // self._info.block_size)
        return Need(job.sampling.seats, blocks, tokens)
