"""Samples processes, Redis and engines while something runs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import httpx
import psutil
from redis import Redis

from app.keys import Keys
from app.messages.lease import decode_worker_metrics
from app.settings import Settings

_TTL_S: float = Settings.model_fields["lease_ttl_s"].default
Series = list[tuple[float, float]]  # time.monotonic(), value


@contextmanager
def sampled(look: Callable[[], float], every_s: float) -> Iterator[Series]:
    """Calls `look` at intervals in a thread; after a late one, the next follows at once."""
    samples: Series = []
    over = Event()

    def loop() -> None:
        due = time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):
            at = time.monotonic()
            samples.append((at, look()))
            due = max(due + every_s, time.monotonic() - every_s)

    thread = Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def rss_mb(pid: int) -> Callable[[], float]:
    """Memory of a process and its children, MiB."""
    process = psutil.Process(pid)
    everyone = [process, *process.children(recursive=True)]
    return lambda: sum(each.memory_info().rss for each in everyone) / 2**20


def redis_bytes(redis: "Redis") -> Callable[[], float]:
    return lambda: float(redis.info("memory")["used_memory"])


def live_ms(url: str) -> Callable[[], float]:
    """A function that returns how long GET /live takes, ms."""
    http = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def look() -> float:
        began = time.perf_counter()
        http.get("/live").raise_for_status()
        return 1e3 * (time.perf_counter() - began)

    return look


class Busy:
    """The share of the time in which the engines were busy."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._before = self._read()

    def share(self) -> float:
        """The share since the beginning, mean over the engines."""
        now = self._read()
        shares = [(now[w][1] - busy_s) / (now[w][0] - at) for w, (at, busy_s) in self._before.items()]
        return sum(shares) / len(shares)

    def _read(self) -> dict[str, tuple[float, float]]:
        """Readings by worker: when it last wrote its metrics, by the key's time to live, and its busy seconds then."""
        readings = {}
        for key in self._redis.scan_iter(Keys("xylem").metrics("*")):  # type: ignore[arg-type]
            pipe = self._redis.pipeline()
            pipe.get(key)
            pipe.pttl(key)
            raw, left_ms = pipe.execute()
            (busy_s,) = (m.value for m in decode_worker_metrics(raw) if m.name == "xylem_worker_busy_seconds")
            readings[str(key)] = time.monotonic() - (_TTL_S - left_ms / 1e3), busy_s
        return readings
