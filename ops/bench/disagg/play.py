"""Sends requests at given times, without waiting for earlier answers, and records each one's times."""

import asyncio
import json
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import psutil

from ops.bench.load import System
from ops.bench.loadgen.connection import Connection
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
    body = json.dumps(
        {
            "model": system.model, "prompt": rng.choices(_VOCABULARY, k=asked.prompt), "max_tokens": asked.answer,
            "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }
    ).encode()  # fmt: skip
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


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
    """CPU seconds since the beginning: of the processes under test, their children, this one, and the machine."""

    def __init__(self, watch: dict[str, list[int]]) -> None:
        self._processes = {part: [p for pid in pids for p in _family(pid)] for part, pids in watch.items()}
        self._processes["client"] = [psutil.Process()]
        self._before, self._began = self._read(), time.perf_counter()

    def _read(self) -> dict[str, float]:
        cpu_s = {p: sum(sum(x.cpu_times()[:2]) for x in each) for p, each in self._processes.items()}
        machine = psutil.cpu_times()
        return cpu_s | {"machine": sum(machine) - machine.idle - machine.iowait, "stolen": machine.steal}

    def cores(self) -> dict[str, float]:
        """Mean cores in use, by part."""
        wall = time.perf_counter() - self._began
        return {part: (now - self._before[part]) / wall for part, now in self._read().items()}


def _family(pid: int) -> list[psutil.Process]:
    """vLLM computes in a child of its worker."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


async def lateness(late: list[float]) -> None:
    """Measures the lag of this process' event loop; until cancelled."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(_LAG_S)
        late.append(time.perf_counter() - began - _LAG_S)


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else float("nan")
