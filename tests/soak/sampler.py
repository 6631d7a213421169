"""Samples of what processes and Redis hold, every few seconds, in a thread of its own."""

import time
from collections import Counter, defaultdict
from threading import Event, Thread
from typing import Any

import psutil
from redis.exceptions import RedisError

from tests.chaos.fleet import Fleet
from tests.soak.growth import Point


class Sampler(Thread):
    def __init__(self, fleet: Fleet, every_s: float) -> None:
        super().__init__(name="sampler", daemon=True)
        self._fleet, self._every_s, self._stop_asked = fleet, every_s, Event()
        self.began = self.ended = time.monotonic()
        # (name, pid) → bytes of it alone (USS). Of Redis, what it has allocated: libc gives freed pages back, or not.
        self.memory: dict[tuple[str, int], list[Point]] = defaultdict(list)
        self.descriptors: dict[tuple[str, int], list[Point]] = defaultdict(list)
        self.keys: dict[str, list[Point]] = defaultdict(list)  # kind → how many
        self.key_bytes: dict[str, list[Point]] = defaultdict(list)
        self.files: list[Point] = []  # in XYLEM_FILES

    def run(self) -> None:
        while not self._stop_asked.wait(self._every_s):
            self._sample_processes()
            self._sample_redis()
            file_count = sum(path.is_file() for path in (self._fleet.directory / "files").rglob("*"))
            self.files.append((time.monotonic(), file_count))

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()
        self.ended = time.monotonic()

    def steady(self) -> list[tuple[str, int]]:
        """The processes that lived from the first tenth of the run to its end."""
        early, late = self.began + (self.ended - self.began) / 10, self.ended - 3 * self._every_s - 10
        return [process for process, points in self.memory.items() if points[0][0] < early and points[-1][0] > late]

    def as_json(self) -> dict[str, Any]:
        """All samples, by name: seconds since the begin, value."""
        process_series = {
            what: {f"{name} {pid}": points for (name, pid), points in series.items()}
            for what, series in (("memory", self.memory), ("descriptors", self.descriptors))
        }
        all_series = process_series | {"keys": self.keys, "key_bytes": self.key_bytes, "files": {"files": self.files}}
        return {
            what: {
                name: [(round(at - self.began, 1), value) for at, value in points] for name, points in series.items()
            }
            for what, series in all_series.items()
        }

    def _sample_processes(self) -> None:
        redis = self._fleet.redis_process
        for name, process in [*self._fleet.stack.names.items(), *([("redis", redis)] if redis else [])]:
            try:
                psutil_process = psutil.Process(process.pid)
                memory = self._allocated() if process is redis else psutil_process.memory_full_info().uss
                descriptors = psutil_process.num_fds()
            except (psutil.Error, RedisError):
                continue  # it is being replaced
            now = time.monotonic()
            self.memory[name, process.pid].append((now, memory))
            self.descriptors[name, process.pid].append((now, descriptors))

    def _allocated(self) -> int:
        """Bytes. Raises: RedisError."""
        info: Any = self._fleet.redis.info("memory")
        return int(info["used_memory"])

    def _sample_redis(self) -> None:
        try:
            counts, sizes = kinds(self._fleet)
        except RedisError:
            return  # its connections are being cut
        now = time.monotonic()
        for counter in (counts, sizes):
            counter["all"] = counter.total()
        for kind in {*counts, *self.keys}:
            self.keys[kind].append((now, counts[kind]))
            self.key_bytes[kind].append((now, sizes[kind]))


def kinds(fleet: Fleet) -> tuple[Counter[str], Counter[str]]:
    """Keys and their bytes by the first part of their names. Raises: RedisError."""
    counts, sizes = Counter[str](), Counter[str]()
    redis = fleet.redis
    names = list(redis.scan_iter(count=1000))
    with redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.memory_usage(name)
        for name, size in zip(names, pipeline.execute(), strict=True):
            if size is not None:
                kind = _kind(name.decode(errors="replace"))
                counts[kind] += 1
                sizes[kind] += size
    return counts, sizes


def _kind(name: str) -> str:
    """The queues of all workers are one kind."""
    kind = name.removeprefix("xylem:").partition(":")[0].partition("\x06")[0]
    return "queues of workers" if "." in kind and not kind.startswith("_") else kind
