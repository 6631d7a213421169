"""Online requests at 30 % load of two engines, with and without an endless batch, in turns."""

import asyncio
import math
import time
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import uvloop
from redis import Redis

from ops.bench.batch.client import Client, write_lines
from ops.bench.batch.watch import Busy
from ops.bench.benchmarks import NO_LINE_ENDED
from ops.bench.disagg.fleets import TOKENS_PER_S, pool, shapes
from ops.bench.disagg.play import Asked, Cpu, lateness, percentile, play, poisson
from ops.bench.load import System
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import fleet

_POOL_NAME, _ENDPOINT = "decode-pool-a", "/v1/completions"
_WORKERS, _LOAD = 2, 0.3
_BATCH_PROMPT, _BATCH_ANSWER = (200, 600), (100, 300)
_ALONE_S, _QUICK_ALONE_S = 30.0, 20.0
_FILL_S = 12.0  # until the engines have all the batch's lines that they take, and the first lines end
_SETTLE_S = 3.0  # after the batch is paused
_VOCABULARY = range(300, 1500)


class Traffic(NamedTuple):
    """The online requests."""

    pool: dict[str, Any]
    per_s: float
    shapes: list[tuple[int, int]]  # (prompt tokens, answer tokens)
    seconds: float  # of a run
    lines: int  # of the batch, so that it never ends


def _trace(size: Size) -> Traffic:
    """A trace of conversations, at 30 % of the engines' prefill capacity, as in `disagg`."""
    request_shapes = shapes()
    per_s = _LOAD * _WORKERS * TOKENS_PER_S / fmean(prompt for prompt, _ in request_shapes)
    return Traffic(
        pool("both", **_seats(size)), per_s, request_shapes, size.of(150.0, 60.0, 2.0), size.of(25_000, 10_000, 400)
    )


def _short(size: Size) -> Traffic:
    """Short prompts that keep engines of a third of the default speed busy for 30 % of the time."""
    args = {"step_ms": 20.0, "step_ms_per_sequence": 0.15, "prefill_tokens_per_s": 8000.0}
    rng = Random(1)
    request_shapes = [(rng.randint(100, 400), rng.randint(10, 30)) for _ in range(1000)]
    entry = pool("both", args=args, **_seats(size))
    return Traffic(entry, size.of(1.5, 1.5, 3.0), request_shapes, size.of(100.0, 60.0, 2.0), size.of(8_000, 4_000, 400))


def _seats(size: Size) -> dict[str, int]:
    """The engines' seats: so few in the smallest size that a short batch doesn't end too soon."""
    return size.of({}, {}, {"max_running": 4})


def beside(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """A row per run, and a summary. Raises: Unavailable."""
    rows, capacity = _play(directory, _trace(size), size, say)
    missing = _unmeasured("batch_share_of_capacity", capacity)
    return {"beside": rows, "batch_tokens_per_s_alone": capacity, "missing": missing, **_verdict(rows, capacity)}


def short(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Measures the same with short prompts. Raises: Unavailable."""
    rows, capacity = _play(directory, _short(size), size, say)
    figures = {f"short_{name}": value for name, value in _verdict(rows, capacity).items()}
    return {"short": rows, "missing": _unmeasured("short_batch_share_of_capacity", capacity), **figures}


def _unmeasured(figure: str, capacity: float) -> dict[str, str]:
    """The reason why a share is missing: in the smallest size a batch may be over in no time, or not have begun."""
    return {} if capacity else {figure: NO_LINE_ENDED}


def _play(directory: Path, traffic: Traffic, size: Size, say: Say) -> tuple[list[dict[str, Any]], float]:
    """The runs, and the batch's tokens/s without online requests."""
    with fleet(directory / "fleet", {_POOL_NAME: traffic.pool}, {_POOL_NAME: _WORKERS}, 1) as system:
        uvloop.run(play(system, [Asked(0.2 * i, 300, 10) for i in range(size.of(10, 10, 2))], 0))
        client = Client(system.url)
        file = directory / "lines.jsonl"
        write_lines(file, _ENDPOINT, _lines(traffic.lines))
        batch = client.create(client.upload(file), _ENDPOINT)
        client.until(batch, lambda b: b["request_counts"]["completed"] > 0, 120)
        say(f"{directory.name}: the batch alone")
        fill_s, settle_s = size.of(_FILL_S, _FILL_S, 0.5), size.of(_SETTLE_S, _SETTLE_S, 0.5)
        time.sleep(fill_s)
        capacity = _speed_alone(client, batch, size.of(_ALONE_S, _QUICK_ALONE_S, 1.0))
        rows = []
        for turn in range(size.of(4, 2, 2)):
            beside_ = bool(turn % 2)
            how = "with" if beside_ else "without"
            say(f"{directory.name}: {traffic.seconds:.0f} s of online requests {how} the batch")
            client.set_paused(batch, not beside_)
            time.sleep(fill_s if beside_ else settle_s)
            # Each run has new prompts, or they would be cached; arrivals and lengths are the same in a pair.
            requests = poisson(turn // 2 + 1, traffic.per_s, traffic.seconds, traffic.shapes)
            figures = uvloop.run(_run(system, client, batch, requests, 100 + turn, traffic.seconds))
            rows.append({"batch": beside_, **figures})
        if client.find(batch)["status"] != "in_progress":
            raise Unavailable("the batch ended before the measurement")
        client.cancel(batch)
    return rows, capacity


def _lines(count: int) -> Any:
    rng = Random(7)
    for _ in range(count):
        prompt = rng.choices(_VOCABULARY, k=rng.randint(*_BATCH_PROMPT))
        yield {"model": "mock", "prompt": prompt, "max_tokens": rng.randint(*_BATCH_ANSWER), "ignore_eos": True}


def _speed_alone(client: Client, batch: str, seconds: float) -> float:
    """Answer tokens a second, without online requests."""
    before, began = client.find(batch)["usage"]["output_tokens"], time.perf_counter()
    time.sleep(seconds)
    tokens: int = client.find(batch)["usage"]["output_tokens"] - before
    return tokens / (time.perf_counter() - began)


async def _run(
    system: System, client: Client, batch: str, asked: list[Asked], seed: int, seconds: float
) -> dict[str, Any]:
    late: list[float] = []
    watching = asyncio.create_task(lateness(late))
    with Redis.from_url(system.redis_url) as redis:
        cpu, busy = Cpu(system.watch), Busy(redis)
        before = (await asyncio.to_thread(client.find, batch))["usage"]["output_tokens"]
        began = time.perf_counter()
        playing = asyncio.create_task(play(system, asked, seed))
        await asyncio.wait([playing], timeout=seconds)
        batch_tokens = (await asyncio.to_thread(client.find, batch))["usage"]["output_tokens"] - before
        took, share, cores = time.perf_counter() - began, busy.share(), cpu.cores()
        answers = await playing
    watching.cancel()
    ours = sum(cores[part] for part in ("api", "workers", "redis", "batch", "client"))
    return {
        "requests": len(answers), "cached": sum(s.cached for s in answers),
        "ttft_ms": [1e3 * s.ttft for s in answers], "gaps_ms": [1e3 * gap for s in answers for gap in s.gaps],
        "busy": share, "batch_tokens_per_s": batch_tokens / took, "client_late_p99_ms": 1e3 * percentile(late, 99),
        "cores": cores, "other_cores": cores["machine"] - ours,
    }  # fmt: skip


def _verdict(rows: list[dict[str, Any]], capacity: float) -> dict[str, Any]:
    """p99 over all runs of a kind, and the ratio in each pair."""
    kinds = {kind: [row for row in rows if row["batch"] is kind] for kind in (True, False)}

    def p99(kind: bool, what: str) -> float:
        return percentile([x for row in kinds[kind] for x in row[what]], 99)

    def mean(kind: bool, what: str) -> float:
        return float(sum(row[what] for row in kinds[kind]) / len(kinds[kind]))

    pairs = [
        [percentile(b[what], 99) / percentile(a[what], 99) for a, b in list(pairwise(rows))[::2]]
        for what in ("ttft_ms", "gaps_ms")
    ]
    return {
        "busy": mean(True, "busy"), "busy_online_only": mean(False, "busy"),
        "online_ttft_p99_ratio": p99(True, "ttft_ms") / p99(False, "ttft_ms"),
        "online_itl_p99_ratio": p99(True, "gaps_ms") / p99(False, "gaps_ms"),
        "ttft_p99_ratios": pairs[0], "itl_p99_ratios": pairs[1],
        "batch_tokens_per_s_beside": mean(True, "batch_tokens_per_s"),
        "batch_share_of_capacity": mean(True, "batch_tokens_per_s") / capacity if capacity else math.nan,
        "other_cores": max(row["other_cores"] for row in rows),
    }  # fmt: skip
