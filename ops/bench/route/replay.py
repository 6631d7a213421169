"""The same trace through the whole system: real processes, mock engines at a simulated speed, policy by policy.

Lengths are divided by `_SHRINK` and blocks with them, so that a trace of 13,000-token prompts is one of 400-token
prompts on engines as much slower: what waits for what stays the same. Times are divided by `_SPEEDUP`.
"""

import asyncio
import gzip
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import httpx
import numpy as np
import uvloop

from ops.bench.load import trace as trace_file
from ops.bench.parts import Say
from ops.bench.route.simulation import OURS, TRACES, run
from ops.bench.simulator.engine import Engine
from ops.bench.simulator.replay import pace_of
from ops.bench.simulator.requests import bounds, read_trace
from ops.bench.size import Size
from ops.bench.systems import xylem

POLICIES = {"kv": OURS, "least_loaded": "least_loaded", "round_robin": "round_robin", "random": "random"}
WORKERS, _CACHE, _TRACE_BLOCK = 4, 4000, 512
_SHRINK, _SPEEDUP = 32, 10.0
_PREFILL, _STEP_MS, _SEQUENCE_MS, _CHUNK = 10_000.0, 15.0, 0.1, 2048  # the simulator's engine
_MODEL_LEN = 8192
_VOCABULARY = 1500  # token ids within the mock's vocabulary


def replay(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """TTFT by policy, as simulated and as measured, in seconds of the trace. Raises: Unavailable."""
    limit, workers = size.of(900, 500, 20), size.of(WORKERS, WORKERS, 2)
    policies = list(POLICIES)[: size.of(None, None, 1)]
    trace = directory / "trace.jsonl"
    with gzip.open(trace_file(TRACES[0]), "rt") as rows:
        trace.write_text("".join(itertools.islice(rows, limit)))
    say("replay: simulating")
    simulations = run(directory, trace, workers, [POLICIES[policy] for policy in policies], 0, _CACHE)
    requests = _requests(trace, workers)
    measurements = {}
    for policy in policies:
        say(f"replay: {policy}, {requests[-1][0] / _SPEEDUP:.0f} s")
        pool = {
            "model": "mock", "engine": "mock", "block_size": _TRACE_BLOCK // _SHRINK, "max_running": 256,
            "max_model_len": _MODEL_LEN, "routing": {"policy": policy},
            "args": {
                "prefill_tokens_per_s": _PREFILL / _SHRINK, "step_ms": _STEP_MS, "step_ms_per_sequence": _SEQUENCE_MS,
                "max_batched_tokens": _CHUNK // _SHRINK + 64, "total_blocks": _CACHE, "speedup": _SPEEDUP,
            },
        }  # fmt: skip
        with xylem(directory / policy, pool, workers) as system:
            measurements[policy] = uvloop.run(_play(system.url, requests))
    return {"replayed": {p: {"simulated": simulations[POLICIES[p]], "measured": measurements[p]} for p in policies}}


def _requests(trace: Path, workers: int) -> list[tuple[float, list[int], int]]:
    """Requests: when (seconds of the trace at the simulator's load), the prompt's token ids, the answer's length."""
    engine = Engine(
        block_size=_TRACE_BLOCK, cache_blocks=_CACHE, prefill_per_s=_PREFILL, step_s=_STEP_MS / 1e3,
        request_s=_SEQUENCE_MS / 1e3, chunk=_CHUNK,
    )  # fmt: skip
    requests = read_trace(trace, _TRACE_BLOCK)
    pace = pace_of(requests, bounds(requests, engine, workers, 0.1)["uncached"], workers, 0.85, 0)
    size = _TRACE_BLOCK // _SHRINK
    out = []
    for q in requests.heads:
        tokens = [t for block in q.blocks for t in _block(block, size)][: max(1, q.prompt // _SHRINK)]
        out.append((q.start / pace, tokens, q.answer))
    return out


def _block(number: int, size: int) -> list[int]:
    random = Random(number)
    return [random.randrange(300, _VOCABULARY) for _ in range(size)]


async def _play(url: str, requests: Sequence[tuple[float, list[int], int]]) -> dict[str, float]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    ttft, cached_tokens, prompt_tokens = [], 0, 0
    began = time.perf_counter()

    async def one(client: httpx.AsyncClient, at: float, tokens: list[int], answer: int) -> tuple[float, int]:
        await asyncio.sleep(began + at / _SPEEDUP - time.perf_counter())
        body = {
            "model": "mock", "prompt": tokens, "max_tokens": answer, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        first, last = 0.0, b""
        send_time = time.perf_counter()
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for chunk in response.aiter_raw():
                first = first or time.perf_counter() - send_time
                last = (last + chunk)[-2000:]
        usage = json.loads(last.rsplit(b"data: {", 1)[1].join([b"{", b""]).split(b"\n\n")[0])["usage"]
        return first, usage["prompt_tokens_details"]["cached_tokens"]

    async with httpx.AsyncClient(limits=limits, timeout=300) as client:
        results = await asyncio.gather(*(one(client, *r) for r in requests))
    warm_part = slice(len(requests) // 10, None)
    for (first, hit), (_, tokens, _answer) in zip(results[warm_part], requests[warm_part], strict=True):
        ttft.append(first * _SPEEDUP)
        cached_tokens += hit
        prompt_tokens += len(tokens)
    return {"ttft_mean": fmean(ttft), "ttft_p99": float(np.percentile(ttft, 99)), "hit": cached_tokens / prompt_tokens}
