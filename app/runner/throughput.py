"""How fast one worker's engine is, and how long it has been busy."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from msgspec.structs import replace

from app.messages import Job, Speeds
from app.routing.throughput_meter import ThroughputMeter
from app.runner.busy_time import BusyTime, Cost

_SPEED = 10_000.0  # prompt tokens a second, assumed for an engine that has computed none


class Throughput:
    """Measures online requests, which count as the worker's load, apart from aside ones."""

    def __init__(self, ranks: int, seats: int) -> None:
        self.online, self.aside = ThroughputMeter(ranks), ThroughputMeter(ranks)
        self.working, self._seats = BusyTime(), seats

    @contextmanager
    def has(self, job: Job, cost: Cost | None = None) -> Iterator[None]:
        """Counts the request as one of the engine's meanwhile, with its `cost`."""
        meter = self._of(job)
        meter.begin(job.run, monotonic())
        try:
            with self.working.one(cost):
                yield
        finally:
            meter.end(job.run, monotonic())

    def first_token(self, job: Job, rank: int, tokens: int) -> None:
        """`tokens` of its prompt were computed, on data-parallel rank `rank`."""
        queued = self.working.requests > self._seats
        self._of(job).first_token(job.run, rank, tokens, monotonic(), queued=queued)

    def read(self) -> Speeds:
        """Speeds of online requests; without any yet, prefill speed is that of aside ones."""
        now = monotonic()
        pace = self.online.read(now)
        speed = pace.prefill_tokens_per_s or self.aside.read(now).prefill_tokens_per_s or _SPEED
        return replace(pace, prefill_tokens_per_s=speed)

    def _of(self, job: Job) -> ThroughputMeter:
        return self.aside if job.aside else self.online
