"""Good answers at five times the capacity, and the cost of waiting clients."""

import asyncio
import random
import statistics
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from msgspec import Struct

from ops.bench.load import System
from ops.bench.loadgen.connection import http_request
from ops.bench.parts import Say
from ops.bench.size import Size
from ops.bench.systems import xylem

_SEATS, _STEP_MS, _TOKENS = 8, 20.0, 20
CAPACITY = _SEATS * 1000 / (_STEP_MS * _TOKENS)  # requests a second
_LATE_S = 10.0  # later answers don't count as good
_POOL = {
    "model": "mock", "engine": "mock", "max_running": _SEATS, "args": {"step_ms": _STEP_MS, "step_ms_per_sequence": 0},
    "busy": {"max_queued": 16, "max_held": 16},
}  # fmt: skip


class Phase(Struct):
    """One load with Poisson arrivals."""

    load: float  # times the capacity
    seconds: float
    late: int = 0
    refused_s: list[float] = []
    failed: int = 0
    took_s: list[tuple[float, float]] = []  # (since the phase's begin, how long) of good answers

    began: float = 0.0

    def refused_ms(self, share: float) -> float:
        """The longest time of that share of the refused requests, ms; 0 if there was none."""
        times_s = sorted(self.refused_s) or [0.0]
        return 1000 * times_s[int(len(times_s) * share)]


async def offer(system: System, phases: list[Phase], rng: random.Random, say: Say) -> None:
    """Open loop: new requests don't wait for earlier ones, and each load follows the one before without a pause."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=500)
    async with httpx.AsyncClient(base_url=system.url, timeout=60, limits=limits) as http, asyncio.TaskGroup() as group:
        for phase in phases:
            say(f"{phase.load:g} times the capacity")
            due = phase.began = time.monotonic()
            while (due := due + rng.expovariate(phase.load * CAPACITY)) < phase.began + phase.seconds:
                await asyncio.sleep(due - time.monotonic())
                group.create_task(_ask(http, phase, due - phase.began, rng.randrange(10**9)))


async def _ask(http: httpx.AsyncClient, phase: Phase, since: float, seed: int) -> None:
    began = time.monotonic()
    body = {"model": "mock", "prompt": f"{seed} hello", "max_tokens": _TOKENS, "ignore_eos": True}
    answer = await http.post("/v1/completions", json=body)
    took = time.monotonic() - began
    if answer.status_code == 429:
        phase.refused_s.append(took)
    elif answer.status_code != 200:
        phase.failed += 1
    elif took > _LATE_S:
        phase.late += 1
    else:
        phase.took_s.append((since, took))


def goodput(phases: list[Phase], of: Phase) -> float:
    """Good answers a second during that load, also to earlier requests."""
    ends = (phase.began + since + took for phase in phases for since, took in phase.took_s)
    return sum(of.began < end <= of.began + of.seconds for end in ends) / of.seconds


def recovery_s(calm: Phase, after: Phase) -> float:
    """Seconds from the end of the overload until answers take at most twice as long as before it."""
    usual = statistics.median(took for _, took in calm.took_s)
    slow = [since + took for since, took in after.took_s if took > 2 * usual]
    return max(slow, default=0.0)


async def waiting_clients(system: System, size: Size) -> dict[str, float]:
    """Connections without a request, and clients that don't read their answers."""
    count, idle_s, tokens = size.of((1000, 4.0, 4000), (1000, 4.0, 4000), (10, 0.5, 100))
    api = psutil.Process(system.watch["api"][0])
    port = int(system.url.rpartition(":")[2])
    await asyncio.sleep(idle_s / 4)
    began = time.monotonic()
    before, cpu = api.memory_info().rss, sum(api.cpu_times()[:2])
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    await asyncio.sleep(idle_s)
    figures = {
        "idle_mb": (api.memory_info().rss - before) / 2**20,
        "idle_cpu_share": (sum(api.cpu_times()[:2]) - cpu) / (time.monotonic() - began),
    }
    for _, writer in idle:
        writer.close()
    slow = []
    body = {"model": "mock", "prompt": "x", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    request = http_request("/v1/completions", "localhost", body)
    before = api.memory_info().rss
    for _ in range(_SEATS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(request)
        slow.append((reader, writer))
    await asyncio.sleep(tokens * _STEP_MS / 1000 * 0.25)
    figures["slow_reader_mb"] = (api.memory_info().rss - before) / 2**20 / _SEATS
    for _, writer in slow:
        writer.transport.abort()
    return figures


def load(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    rng, seconds = random.Random(1), size.of(30.0, 10.0, 1.0)
    phases = [Phase(load, seconds) for load in (0.5, 1.0, 2.0, 5.0, 0.5)]
    with xylem(out_dir, _POOL, 1) as system:
        asyncio.run(offer(system, phases, rng, say))
        say("clients that wait")
        waiting = asyncio.run(waiting_clients(system, size))
    worst = phases[3]
    return {
        "goodput_ratio": goodput(phases, worst) / max(goodput(phases, phase) for phase in phases),
        "refused_p99_ms": worst.refused_ms(0.99),
        "recovery_s": recovery_s(phases[0], phases[4]),
        "failed": sum(phase.failed for phase in phases),
        **waiting,
        "phases": [_row(phases, phase) for phase in phases],
    }


def _row(phases: list[Phase], of: Phase) -> dict[str, float]:
    return {
        "load": of.load, "offered_per_s": of.load * CAPACITY, "good_per_s": goodput(phases, of), "late": of.late,
        "refused": len(of.refused_s), "failed": of.failed,
        "refused_p50_ms": of.refused_ms(0.5), "refused_p99_ms": of.refused_ms(0.99),
    }  # fmt: skip
