"""Floods of different weights, and a quiet tenant beside them: what each gets of the engines, and how long it waits."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct

from ops.bench.events import events_async
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.tenants.fleet import STEP_MS, STEP_S, engine_s, fleet

WEIGHTS = {"one": 1.0, "three": 3.0}
_CLIENTS = {"one": 40, "three": 80}  # each asks again when it is answered: more than all seats, for each tenant's share
_QUIET_PER_S, _QUIET_ANSWER = 4.0, 3  # with these it has about one and a half seats, of the six that are its share
_FAST_MS = 10.0  # a step, in the smallest size
_SETTLED = 160  # answers of a flood, before its figures count: some times as many as there are seats


class Answered(Struct, frozen=True):
    tenant: str
    began: float
    at: float
    engine_s: float


class Flood(Struct, frozen=True):
    tenant: str
    clients: int
    words: tuple[int, int]  # of prompts: about as many tokens
    answers: tuple[int, int]  # tokens


async def flood(
    urls: Sequence[str],
    floods: Sequence[Flood],
    found: list[Answered],
    until: Callable[[], bool],
    step_ms: float = STEP_MS,
) -> None:
    """All clients ask until then; `found` is filled. Raises: Unavailable when a request fails."""

    async def client(http: httpx.AsyncClient, of: Flood, rng: random.Random) -> None:
        while not until():
            prompt = " ".join(str(rng.randrange(10**6)) for _ in range(rng.randint(*of.words)))
            body = {"model": "mock", "prompt": prompt, "max_tokens": rng.randint(*of.answers), "ignore_eos": True}
            began = time.monotonic()
            answer = await http.post("/v1/completions", json=body, headers=_key(of.tenant))
            if answer.status_code != 200:
                raise Unavailable(f"{of.tenant}: {answer.text}")
            usage = answer.json()["usage"]
            cost = engine_s(usage["prompt_tokens"], usage["completion_tokens"], step_ms)
            found.append(Answered(of.tenant, began, time.monotonic(), cost))

    async with Clients(urls) as https, asyncio.TaskGroup() as group:
        for of in floods:
            for i in range(of.clients):
                group.create_task(client(https.all[i % len(urls)], of, random.Random(f"{of.tenant}{i}")))


async def settled(found: list[Answered]) -> float:
    """Waits until all that the first moments of a flood have brought to the engines is over. Then, monotonic."""
    while len(found) < _SETTLED:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.1)
    return time.monotonic()


async def quiet(urls: Sequence[str], count: int, rng: random.Random) -> list[float]:
    """Its times to the first token, s: Poisson arrivals, of any number at once."""
    ttfts: list[float] = []

    async def ask(http: httpx.AsyncClient) -> None:
        body = {"model": "mock", "prompt": f"{rng.randrange(10**9)} hello", "max_tokens": _QUIET_ANSWER, "stream": True}
        began = time.perf_counter()
        async with http.stream("POST", "/v1/completions", json=body, headers=_key("quiet")) as answer:
            first = 0.0
            async for _ in events_async(answer):
                first = first or time.perf_counter() - began
        ttfts.append(first)

    async with Clients(urls) as https, asyncio.TaskGroup() as group:
        for i in range(count):
            await asyncio.sleep(rng.expovariate(_QUIET_PER_S))
            group.create_task(ask(https.all[i % len(urls)]))
    return ttfts


async def beside_floods(
    urls: Sequence[str], count: int, step_ms: float = STEP_MS
) -> tuple[list[Answered], list[float]]:
    """Answers to two floods of other weights meanwhile, and the quiet tenant's times to the first token, s."""
    over, all_answers = False, list[Answered]()
    floods = [Flood(tenant, _CLIENTS[tenant], (20, 60), (20, 60)) for tenant in WEIGHTS]
    flooding = asyncio.create_task(flood(urls, floods, all_answers, lambda: over, step_ms))
    began = await settled(all_answers)
    ttfts = await quiet(urls, count, random.Random(2))
    end, over = time.monotonic(), True
    answers = [a for a in all_answers if began <= a.at < end]
    await flooding
    return answers, ttfts


async def beside_long_prompts(urls: Sequence[str], seconds: float, step_ms: float = STEP_MS) -> list[Answered]:
    """Answers to a flood of 8,000-token prompts, and to one of short prompts with longer answers."""
    ends, answers = [float("inf")], list[Answered]()
    floods = [Flood("long", 40, (2660, 2660), (1, 8)), Flood("short", 80, (20, 60), (20, 60))]
    flooding = asyncio.create_task(flood(urls, floods, answers, lambda: time.monotonic() > ends[0], step_ms))
    began = await settled(answers)
    ends[0] = began + seconds
    await flooding
    return [a for a in answers if began <= a.at < ends[0]]


def measured(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    return asyncio.run(_measured(directory, size, say))


async def _measured(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    count, step_ms = size.of(240, 80, 4), size.of(STEP_MS, STEP_MS, _FAST_MS)
    with fleet(directory, {**WEIGHTS, "quiet": 1.0}, step_ms) as urls:
        await quiet(urls, min(8, count), random.Random(0))  # connections, first times of everything
        say("a quiet tenant on an idle fleet")
        idle = await quiet(urls, count, random.Random(1))
        say("the same, beside two floods")
        answers, full = await beside_floods(urls, count, step_ms)
    engine_seconds = spent(answers, WEIGHTS)
    p99 = [sorted(times)[int(0.99 * len(times))] for times in (idle, full)]
    return {
        "share_error_max": error(engine_seconds, WEIGHTS),
        "quiet_ttft_p99_ratio": (p99[1] - STEP_S) / p99[0],
        "got_s": engine_seconds,
        "weights": WEIGHTS,
        "answered": Counter(a.tenant for a in answers),
        "ttft_ms": {"idle": [1000 * t for t in idle], "full": [1000 * t for t in full]},
    }


def prompts_measured(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """The share that a flood of 8,000-token prompts gets beside one of the same weight with short ones.

    Raises: Unavailable.
    """
    say("a flood of long prompts")
    step_ms = size.of(STEP_MS, STEP_MS, _FAST_MS)
    with fleet(directory, {"long": 1.0, "short": 1.0}, step_ms) as urls:
        part = asyncio.run(beside_long_prompts(urls, size.of(60, 25, 1), step_ms))
    engine_seconds = spent(part, ("long", "short"))
    return {"long_prompt_share": engine_seconds["long"] / sum(engine_seconds.values()), "prompts_got_s": engine_seconds}


def spent(answered: Iterable[Answered], tenants: Iterable[str]) -> dict[str, float]:
    """Engine seconds."""
    return {tenant: sum(a.engine_s for a in answered if a.tenant == tenant) for tenant in tenants}


def error(got: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The largest deviation of a tenant's part from its share, as a part of that share."""
    total, all_weights = sum(got.values()), sum(weights.values())
    return max(abs(got[tenant] / total * all_weights / weight - 1) for tenant, weight in weights.items())


class Clients(AsyncExitStack):
    """An HTTP client for each replica."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__()
        # The server ends what is idle for 5 s.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=500, keepalive_expiry=2)
        self.all = [httpx.AsyncClient(base_url=url, timeout=120, limits=limits) for url in urls]

    async def __aenter__(self) -> "Clients":
        for http in self.all:
            await self.enter_async_context(http)
        return self


def _key(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {tenant}"}
