"""CPU of the API process for a request: with keys, limits, budgets and usage, against none of them."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
from redis import Redis

from app.ids import TenantId
from app.keys import Keys
from app.messages.wire import encode
from app.tenants.limit_table import Budget, TenantLimits
from app.tenants.records import Price, Tenant
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.tenants.fleet import add_tenants
from tests.stack import Stack, mock_pool, valkey, wait_until

_CLIENTS = 32
_TURN = {"request": 400, "answer": 128}  # in a turn: short ones, so that neighbours find the machine alike
_LEAST = {"request": 128, "answer": 32}  # the kernel tells CPU time in hundredths of a second
_TOKENS = {"request": 1, "answer": 64}  # all of one is the request's own cost; an answer is streamed at a usual pace
_PACE_MS = 10.0
_TURNS, _QUICK_TURNS = 24, 8
_ON = {"XYLEM_REQUIRE_KEYS": "true"}  # and with them usage
_LIMITS = TenantLimits(
    requests_per_min=10**9, tokens_per_min=10**9, parallel=10**6, budget=Budget(1e9, "money"), min_priority=0
)


def measured(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Medians of the turns. Raises: Unavailable."""
    times_s: dict[tuple[str, str], list[float]] = {(of, name): [] for of in _TOKENS for name in ("off", "on")}
    with ExitStack() as stacks:
        url = stacks.enter_context(valkey(directory / "redis"))
        stacks_by_name = {
            name: _deployment(stacks, url, directory, name, forks=size.smallest) for name in ("off", "on")
        }
        turns = size.of(_TURNS, _QUICK_TURNS, 1)
        for number in range(turns + 1):
            say(f"turn {number} of {turns}")
            for of, name in sorted(times_s, reverse=number % 2 == 1):
                cpu_s = _turn(stacks_by_name[name], of, size.of(_TURN[of], _TURN[of], _LEAST[of]))
                if number:  # the first one is for first times of everything
                    times_s[of, name].append(cpu_s)
    return {
        **{f"cpu_per_{of}_ratio": _ratio(times_s[of, "on"], times_s[of, "off"]) for of in _TOKENS},
        "cpu_ms": {f"{_TOKENS[of]} tokens, {name}": 1000 * median(cpu_s) for (of, name), cpu_s in times_s.items()},
    }


def _ratio(on: Sequence[float], off: Sequence[float]) -> float:
    return median(a / b for a, b in zip(on, off, strict=True))


def _deployment(stacks: ExitStack, url: str, directory: Path, name: str, *, forks: bool) -> Stack:
    of = directory / name
    of.mkdir()
    pools = {"request-pool": mock_pool(model="request", step_ms=0.0)}
    pools["answer-pool"] = mock_pool(model="answer", step_ms=_PACE_MS, max_running=_CLIENTS)
    env = {"XYLEM_DEPLOYMENT": name, "XYLEM_ADMIN_KEY": "admin", **(_ON if name == "on" else {})}
    s = Stack(url, of, pools, env, forks=forks)
    stacks.callback(s.close)
    with Redis.from_url(url) as redis:
        keys = Keys(name)
        add_tenants(redis, keys, {"one": 1.0, "two": 3.0})
        redis.hset(keys.tenants(), "one", encode(Tenant(TenantId("one"), limits=_LIMITS)))  # type: ignore[arg-type]
        for model in _TOKENS:
            redis.hset(keys.prices(), model, encode(Price(1.0, 0.5, 4.0)))  # type: ignore[arg-type]
    s.api()
    for pool in pools:
        s.worker(pool, pool)
    for model in _TOKENS:
        s.wait_ready(model=model)
    headers = {"authorization": "Bearer one"}
    wait_until(lambda: httpx.get(f"{s.url}/v1/models", headers=headers).status_code == 200, "the keys are known")
    return s


def _turn(s: Stack, of: str, requests: int) -> float:
    """CPU seconds of the API process for a request, of all its threads. Raises: Unavailable."""
    api = psutil.Process(s.names["api"].pid)
    before = sum(api.cpu_times()[:2])
    statuses = asyncio.run(_ask(s.url, of, requests))
    cpu_s = sum(api.cpu_times()[:2]) - before
    if any(status != 200 for status in statuses):
        raise Unavailable(f"requests were refused: {sorted(set(statuses))}")
    return cpu_s / len(statuses)


async def _ask(url: str, of: str, requests: int) -> Sequence[int]:
    statuses: list[int] = []
    tokens = _TOKENS[of]
    body = {"model": of, "prompt": "Tell me about the sea.", "max_tokens": tokens, "stream": tokens > 1}
    headers = {"authorization": "Bearer one"}

    async def client(http: httpx.AsyncClient) -> None:
        for _ in range(requests // _CLIENTS):
            statuses.append((await http.post("/v1/completions", json=body, headers=headers)).status_code)  # noqa: PERF401 (one after the other)

    limits = httpx.Limits(max_connections=_CLIENTS, max_keepalive_connections=_CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http, asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(client(http))
    return statuses
