"""Prefill and decode apart, each an engine over two hosts, and beside them one engine of the model on one host."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.nodes import LOADS_S, SMALL, STORY, Hosts, pools_on_hosts
from tests.stack import leases, timeline, wait_until
from tests.tiny import tiny_model

PREFILL, DECODE, ALONE = "prefill-pool-r", "decode-pool-r", "decode-pool-s"
ENGINES: dict[str, dict[str, Any]] = {
    "vllm": {"block_size": 32, "args": {"kv_cache_memory_bytes": 2**27}},
    "sglang": {"block_size": 16, "args": {"max_total_tokens": 4096}},
}


class Answers(NamedTuple):
    apart: str
    alone: str
    workers: list[str]  # that had a part in the first


@contextmanager
def apart_on_hosts(directory: Path, engine: str) -> Iterator[Hosts]:
    """Starts five hosts, and waits until all three engines take requests."""
    alone = SMALL | ENGINES[engine] | {"engine": engine, "path": str(tiny_model()), "model": "alone"}
    apart = alone | {"model": "apart", "nodes": 2, "tensor_parallel_size": 2}
    pools = {
        PREFILL: apart | {"role": "prefill", "disagg": {"remote_tokens": 32, "remote_wait_s": 60}},
        DECODE: apart | {"role": "decode"},
        ALONE: alone,
    }
    with pools_on_hosts(directory, pools, 5) as hosts:
        s = hosts.stack
        wait_until(lambda: all(leases(s, pool) for pool in pools), "all leaders take requests", LOADS_S, every_s=0.1)
        for model in ("apart", "alone"):
            s.wait_ready(model=model)
        yield hosts


def answers(hosts: Hosts, number: int) -> Answers:
    """Both answers to a prompt of this number."""
    body = {"prompt": f"Story number {number}: {STORY}", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    replies = [
        httpx.post(f"{hosts.stack.url}/v1/completions", json={**body, "model": model}, timeout=600)
        for model in ("apart", "alone")
    ]
    assert all(reply.status_code == 200 for reply in replies), replies[0].text
    apart, alone = (reply.json() for reply in replies)
    workers = [worker["worker"] for worker in timeline(hosts.stack, apart["id"])["workers"]]
    return Answers(apart["choices"][0]["text"], alone["choices"][0]["text"], workers)
