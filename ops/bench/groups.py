"""Measures how soon an engine on several hosts answers again after one of them is lost: `python -m ops.bench.groups`.

Prints one line of JSON. `group_recovery_s`: from the end of a follower, in the middle of an answer, to that answer's
next token, without the engine's loading, which is what its leader does between `group_formed` and `engine_ready`. Both
processes are started again at once, here on one machine; a host of its own would start each faster.
"""

import argparse
import json
import signal
import tempfile
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from ops.bench.events import events
from ops.bench.size import Size
from tests.namespaces import Here
from tests.nodes import MODEL, POOL, Hosts
from tests.shallow import shallow_model
from tests.stack import Stack, mock_pool, stack, valkey

FIGURES = ("group_recovery_s", "total_s", "formed_after_s", "load_s", "token_after_ready_s")
_TOKENS, _AFTER = 200, 20  # of the answer, and of these before the loss
_ENV = {
    "XYLEM_LOG_JSON": "true", "XYLEM_PATIENCE_S": "600", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
}  # fmt: skip
_POOLS: dict[str, dict[str, Any]] = {
    "mock": mock_pool(step_ms=20.0, model=MODEL),
    "vllm": {
        "model": MODEL, "engine": "vllm", "max_model_len": 1024, "max_running": 4,
        "args": {"kv_cache_memory_bytes": 2**27},
    },
}  # fmt: skip


def measure(engine: str, size: Size) -> dict[str, float]:
    """`engine`: mock, which loads at once, or vllm, with a data-parallel rank in each of two processes. Seconds."""
    pool = _POOLS[engine] | {"nodes": 2, "data_parallel_size": 2}
    if engine == "vllm":
        pool |= {"path": str(shallow_model())}
    with tempfile.TemporaryDirectory() as folder_name:
        directory = Path(folder_name)
        with valkey(directory / "redis") as url, stack(url, directory, {POOL: pool}, **_ENV) as s:
            s.forks = size.smallest  # in a deployment, a process that ends begins with its imports
            s.api()
            with Hosts(s, [Here("a", "127.0.0.1"), Here("b", "127.0.0.1")]) as hosts:
                hosts.wait_ready()
                return _lose_one(s, hosts)


def _lose_one(s: Stack, hosts: Hosts) -> dict[str, float]:
    arrivals: list[float] = []
    reader = Thread(target=_read, args=(s, arrivals))
    reader.start()
    while len(arrivals) < _AFTER:
        time.sleep(0.005)
    follower, at = hosts.follower(), time.time()
    hosts.kill(follower)
    reader.join()
    next_token = _first_after_the_gap(arrivals)
    (formed_at, ready_at), *_ = [times for host in hosts.hosts if (times := _loading(hosts.log(host), at))]
    return {
        "group_recovery_s": round(next_token - at - (ready_at - formed_at), 2),
        "total_s": round(next_token - at, 2),
        "formed_after_s": round(formed_at - at, 2),
        "load_s": round(ready_at - formed_at, 2),
        "token_after_ready_s": round(next_token - ready_at, 2),
    }


def _read(s: Stack, arrivals: list[float]) -> None:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": _TOKENS, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{s.url}/v1/completions", json=body | {"ignore_eos": True}, timeout=900) as reply:
        arrivals.extend(time.time() for _ in events(reply))


def _first_after_the_gap(arrivals: list[float]) -> float:
    """Tokens that had been made before the loss may come a moment after it."""
    gaps = pairwise(arrivals)
    return max(gaps, key=lambda gap: gap[1] - gap[0])[1]


def _loading(log: str, since: float) -> tuple[float, float] | None:
    """The times when its process, as the leader, was in a group, and ready; None if it did not lead after `since`."""
    times = {"group_formed": 0.0, "engine_ready": 0.0}
    for line in log.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if event.get("event") in times and (at := datetime.fromisoformat(event["timestamp"]).timestamp()) > since:
            times[event["event"]] = at
    return (times["group_formed"], times["engine_ready"]) if times["engine_ready"] else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=list(_POOLS), default="mock")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as by Ctrl-C, its processes end
    print(json.dumps(measure(parser.parse_args().engine, Size.asked())))
