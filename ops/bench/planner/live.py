"""A part of the day on mock engines: real processes under `xylem up --planner`, which starts and ends workers.

A third of the trace's requests, with a quarter of its answers, on engines that much slower: a worker serves about 1.7
requests a second. At the end few come until the planner is back at one worker, so that it scales in under load.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from ops.bench.events import events_async
from ops.bench.parts import Say
from ops.bench.planner.days import trace
from ops.bench.planner.engine import Request
from ops.bench.processes import Unavailable, tail
from ops.bench.size import Size
from tests.stack import free_port, stop, valkey, wait_until

_MODEL, _POOL = "mock", "decode-pool-a"
_TTFT_S, _ITL_S = 1.5, 0.1
_POOLS = {
    "pools": {
        _POOL: {
            "model": _MODEL, "engine": "mock", "max_running": 32, "scale": {"least": 1, "most": 4},
            "args": {"step_ms": 20.0, "step_ms_per_sequence": 8.0, "prefill_tokens_per_s": 5000.0},
        }
    },
    "planner": {"objectives": {_MODEL: {"ttft_s": _TTFT_S, "itl_s": _ITL_S, "share": 0.99}}},
}  # fmt: skip
_FROM_S, _LONG_S, _QUICK_S = 5400.0, 1200.0, 150.0  # of the trace: the rise to its highest rate
_WARM_UP_S, _QUICK_WARM_UP_S = 120.0, 60.0  # before it: speeds and start-up are measured then
_THIN, _SHORT, _PROMPT = 3, 4, 8
_QUIET_S, _QUIET_LIMIT_S = 2.0, 300.0  # between the last requests, and until one worker is left
_READY_S = 240.0
_FIRST = 2  # workers
_VOCABULARY = 1500  # tokens, at most as many as the model's


def live(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Shares of the clients' requests that were in time, and those lost. Raises: Unavailable, SettingsError."""
    end, warm_up = _FROM_S + size.of(_LONG_S, _QUICK_S, 3.0), size.of(_WARM_UP_S, _QUICK_WARM_UP_S, 1.0)
    quiet_s = size.of(_QUIET_LIMIT_S, _QUIET_LIMIT_S, 0.0)
    rows = [row for row in trace() if _FROM_S - warm_up <= row.at < end][::_THIN]
    pools = directory / "pools.yaml"
    pools.write_text(yaml.safe_dump(_POOLS))
    port, log = free_port(), directory / "up.log"
    with valkey(directory / "valkey") as redis_url, log.open("wb") as out:
        env = {
            **os.environ, "XYLEM_HOME": str(directory), "XYLEM_REDIS_URL": redis_url, "XYLEM_POOLS_FILE": str(pools),
        }  # fmt: skip
        argv = [str(Path(sys.executable).parent / "xylem"), "up", "--pools", str(pools), "--port", str(port)]
        up = subprocess.Popen(
            [*argv, "--flower-port", str(free_port()), "--workers", str(_FIRST), "--planner"],
            env=env, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            wait_until(lambda: b"curl -N" in log.read_bytes(), "xylem up", _READY_S)
            wait_until(lambda: _ready(port) >= _FIRST, "the first workers", _READY_S)
            answers, workers = asyncio.run(_played(f"http://127.0.0.1:{port}", rows, quiet_s, say))
        except AssertionError as exc:
            raise Unavailable(f"{exc}: {tail(log)}") from None
        finally:
            stop(up, signal.SIGINT, 60)
    counted_answers = [answer for at, answer in answers if at >= warm_up]
    (directory / "live.json").write_text(json.dumps({"answers": answers, "workers": workers}))
    return {
        "attained_live": sum(answer == "met" for answer in counted_answers) / len(counted_answers),
        "scale_in_lost": sum(answer == "lost" for _, answer in answers),
        "live_workers": workers,
    }


def _ready(port: int) -> int:
    return int(httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).json()["workers"].get(_MODEL, 0))


async def _played(
    url: str, rows: Sequence[Request], quiet_s: float, say: Say
) -> tuple[list[tuple[float, str]], list[int]]:
    """(seconds since the start, met | late | lost) of each request; workers ready, every 10 s."""
    began, first = time.monotonic(), rows[0].at
    tasks: list[asyncio.Task[tuple[float, str]]] = []
    counts: list[int] = []
    async with httpx.AsyncClient(
        base_url=url, timeout=300, limits=httpx.Limits(max_connections=None), trust_env=False
    ) as client:

        async def ready() -> int:
            return int((await client.get("/ready")).json()["workers"].get(_MODEL, 0))

        async def watch() -> None:
            while True:
                counts.append(await ready())
                say(f"live: {time.monotonic() - began:.0f} s, {counts[-1]} workers, {len(tasks)} requests")
                await asyncio.sleep(10)

        watching = asyncio.create_task(watch())
        for row in rows:
            await asyncio.sleep(max(0.0, row.at - first - (time.monotonic() - began)))
            tasks.append(asyncio.create_task(_asked(client, len(tasks), row, time.monotonic() - began)))
        quiet = time.monotonic()
        while counts[-1] > 1 and time.monotonic() - quiet < quiet_s:
            number = len(tasks)
            tasks.append(
                asyncio.create_task(_asked(client, number, rows[number % len(rows)], time.monotonic() - began))
            )
            await asyncio.sleep(_QUIET_S)
        answers = await asyncio.gather(*tasks)
        watching.cancel()
    return answers, counts


async def _asked(client: httpx.AsyncClient, number: int, row: Request, at: float) -> tuple[float, str]:
    tokens = max(2, row.answer // _SHORT)
    # No two begin alike, as in the trace: else all go to the worker that has the beginning in its cache.
    prompt = [*divmod(number, _VOCABULARY), *(n % _VOCABULARY for n in range(row.prompt // _PROMPT))]
    body = {
        "model": _MODEL, "stream": True, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True,
        "stream_options": {"include_usage": True}, "prompt": prompt,
    }  # fmt: skip
    began = time.monotonic()
    first = last = 0.0
    token_count = 0
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for event in events_async(answer):
                last = time.monotonic() if event.get("choices") else last
                first = first or last
                token_count = (event.get("usage") or {}).get("completion_tokens", token_count)
    except (httpx.HTTPError, Unavailable):
        return at, "lost"
    if token_count != tokens:
        return at, "lost"
    is_met = first - began <= _TTFT_S and (last - first) / (tokens - 1) <= _ITL_S
    return at, "met" if is_met else "late"
