"""Measures how fast one worker's engine is, and how long it has been busy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from msgspec.structs import replace

from app.messages.job import Job, KvTransfer
from app.messages.lease import Speeds
from app.routing.throughput_meter import ThroughputMeter
from app.runner.busy_time import BusyPart, BusyTime

_SPEED = 10_000.0  # prompt tokens a second, assumed for an engine that has computed none


class Throughput:
    """Measures online requests, which count as the worker's load, apart from others."""

    def __init__(self, ranks: int, seats: int, apart: Callable[[Job], bool]) -> None:
        """`apart`: whether a request is none of the load."""
        self._apart = apart
        self.online, self.apart = ThroughputMeter(ranks), ThroughputMeter(ranks)
        self.working, self._seats = BusyTime(), seats

    @contextmanager
    def has(self, job: Job, cost: BusyPart | None = None) -> Iterator[None]:
        """Counts the request as one of the engine's meanwhile, with its `cost`."""
        meter = self._of(job)
        meter.begin(job.run, monotonic())
        try:
            with self.working.one(cost):
                yield
        finally:
            meter.end(job.run, monotonic())

    def first_token(self, job: Job, rank: int, tokens: int, reused_tokens: int = 0) -> None:
        """`tokens` of its prompt were computed, and `reused_tokens` cached, on data-parallel rank `rank`."""
        self._of(job).first_token(job.run, rank, tokens, monotonic(), reused_tokens=reused_tokens, queued=self._queued)

    def pulled(self, job: Job, transfer: KvTransfer | None) -> None:
        """The first output of a request whose prompt's KV came from another engine."""
        meter, now = self._of(job), monotonic()
        meter.has_seat(job.run, now, queued=self._queued)
        if transfer is not None and transfer.seconds:
            meter.pulled(transfer.size, transfer.seconds, now)

    @property
    def _queued(self) -> bool:
        """Whether requests wait for a seat, perhaps."""
        return self.working.requests > self._seats

    def read(self) -> Speeds:
        """Speeds of online requests; without any yet, prefill speed is that of the others."""
        now = monotonic()
        pace = self.online.read(now)
        speed = pace.prefill_tokens_per_s or self.apart.read(now).prefill_tokens_per_s or _SPEED
        return replace(pace, prefill_tokens_per_s=speed)

    def _of(self, job: Job) -> ThroughputMeter:
        return self.apart if self._apart(job) else self.online
