"""Sends requests at given times, without waiting for earlier answers, and records each one's times."""

import asyncio
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from ops.bench.load import System
from ops.bench.loadgen.connection import Connection, http_request
from ops.bench.loadgen.cpu import Reading
from ops.bench.processes import Unavailable

_VOCABULARY = range(300, 1500)  # token ids within the mock's vocabulary
_LIMIT_S = 300.0
_LAG_S = 0.005  # how often the client checks its own lag


@dataclass(frozen=True)
class Asked:
    at: float  # seconds from the beginning
    prompt: int  # tokens, different from all other prompts
    answer: int


@dataclass(frozen=True)
class Served:
    """One request as its client saw it; seconds."""

    at: float
    ttft: float
    total: float
    gaps: list[float]  # between its tokens
    tokens: int
    cached: int
    id: str


def poisson(seed: int, per_s: float, seconds: float, shapes: Sequence[tuple[int, int]]) -> list[Asked]:
    """Arrivals with random shapes (prompt, answer) of those given; the same for the same seed."""
    rng, at, requests = Random(seed), 0.0, []
    while (at := at + rng.expovariate(per_s)) < seconds:
        requests.append(Asked(at, *rng.choice(shapes)))
    return requests


async def play(system: System, requests: Sequence[Asked], seed: int) -> list[Served]:
    """Blocks until the last answer. Raises: Unavailable when a request fails."""
    url = urllib.parse.urlsplit(system.url)
    loop = asyncio.get_running_loop()
    began = time.perf_counter() + 0.2

    async def one(number: int, asked: Asked) -> Served:
        payload = _payload(system, Random(f"{seed}/{number}"), asked)
        await asyncio.sleep(began + asked.at - time.perf_counter())
        _, c = await loop.create_connection(KeepingId, url.hostname, url.port)
        r = await asyncio.wait_for(c.send(payload), _LIMIT_S)
        c.close()
        if r.error is not None:
            raise Unavailable(f"{system.url}: {r.error}")
        gaps = [b - a for (a, _), (b, _) in zip(r.times, r.times[1:], strict=False)]
        gaps += [0.0] * sum(n - 1 for _, n in r.times)  # tokens that came together with the one before
        return Served(asked.at, r.first - r.start, r.end - r.start, gaps, r.tokens, r.cached, c.id)

    return await asyncio.gather(*(one(i, request) for i, request in enumerate(requests)))


def _payload(system: System, rng: Random, asked: Asked) -> bytes:
    body = {
        "model": system.model, "prompt": rng.choices(_VOCABULARY, k=asked.prompt), "max_tokens": asked.answer,
        "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    return http_request("/v1/completions", "localhost", body)


class KeepingId(Connection):
    """A connection for one stream, that remembers the id of the answer."""

    def __init__(self) -> None:
        super().__init__(stream=True)
        self.id = ""

    def data_received(self, data: bytes) -> None:
        if not self.id and b'"id":"' in data:
            self.id = data.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
        super().data_received(data)


class Cpu:
    """CPU since the beginning: of the processes under test, their children, this one, and the machine."""

    def __init__(self, watch: Mapping[str, Sequence[int]]) -> None:
        self._watch = watch
        self._before, self._client_s, self._began = Reading.take(watch), time.process_time(), time.perf_counter()

    def cores(self) -> dict[str, float]:
        """Mean cores in use, by part."""
        before, now, wall_s = self._before, Reading.take(self._watch), time.perf_counter() - self._began
        stolen_s = now.stolen_s - before.stolen_s
        used_s = {part: now.cpu_s[part] - cpu_s for part, cpu_s in before.cpu_s.items()}
        used_s["client"] = time.process_time() - self._client_s
        used_s |= {"machine": now.busy_s - before.busy_s + stolen_s, "stolen": stolen_s}
        return {part: seconds / wall_s for part, seconds in used_s.items()}


async def lateness(late: list[float]) -> None:
    """Measures the lag of this process' event loop; until cancelled."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(_LAG_S)
        late.append(time.perf_counter() - began - _LAG_S)


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else float("nan")
