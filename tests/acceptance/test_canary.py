"""Workers whose engine doesn't begin, or stands still or is gone when they are idle: on mock and real engines."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.chaos.fleet import TEMPLATE
from tests.shallow import shallow_model
from tests.stack import Stack, leases, mock_pool, stack, wait_until, worker_process

pytestmark = pytest.mark.timeout(400)

POOL = "decode-pool-a"
LOADS_S = 300


@contextmanager
def worker_of(redis_url: str, folder: Path, pool: dict[str, Any], **env: str) -> Iterator[Stack]:
    """Ready, and asked for a token whenever it has been idle for a moment."""
    env = {"XYLEM_DEPLOYMENT": folder.name, "XYLEM_CANARY_S": "0.5", "XYLEM_LEASE_TTL_S": "6", **env}
    other = {"prefill": "decode", "decode": "prefill"}.get(pool.get("role", "both"))
    pools = {POOL: pool} | ({"other": pool | {"role": other}} if other else {})
    with stack(redis_url, folder, pools, **env) as s:
        s.worker()
        wait_until(lambda: in_routing(s), "it is ready", LOADS_S)
        yield s


def in_routing(s: Stack) -> bool:
    return any(not lease.draining for lease in leases(s, POOL))


def test_an_engine_that_hangs_with_nothing_to_do_ends_its_worker(valkey_url: str, tmp_path: Path) -> None:
    """The request that made it hang is given up by its client, so the watchdog sees no work."""
    with worker_of(valkey_url, tmp_path, mock_pool(hangs_on="venom"), XYLEM_STALL_S="6") as s:
        s.api()
        s.wait_ready()
        body = {"model": "mock", "prompt": "a venom apple"}
        with suppress(httpx.ReadTimeout):
            httpx.post(f"{s.url}/v1/completions", json=body, timeout=httpx.Timeout(30, read=1))
        wait_until(lambda: not in_routing(s), "it has left routing")
        wait_until(lambda: s.names["worker"].poll() is not None, "it has ended")
        log = s.log("worker")
        assert log.index("engine_late") < log.index("engine_hangs")
        assert "idle, and no answer" in log
        s.worker(name="other")
        wait_until(lambda: in_routing(s), "another one is ready")


@pytest.mark.parametrize(
    "pool",
    [
        pytest.param({}, id="generates"),
        pytest.param({"task": "embed"}, id="embeds"),
        pytest.param({"task": "image"}, id="paints"),
        pytest.param({"role": "encode", "args": {"dies_on_picture": 0}}, id="encodes pictures"),
    ],
)
def test_a_worker_whose_engine_does_not_survive_its_first_use_is_never_ready(
    valkey_url: str, tmp_path: Path, pool: dict[str, Any]
) -> None:
    answers = mock_pool() | {"embeddings": True} if pool.get("role") == "encode" else None
    pools = {POOL: mock_pool(dies_on="") | pool} | ({"decode-pool-b": answers} if answers else {})
    with stack(valkey_url, tmp_path, pools, XYLEM_DEPLOYMENT="stillborn") as s:
        worker = s.worker()
        wait_until(lambda: worker.poll() is not None, "it has ended")
        assert "loading_engine" in s.log("worker")
        assert "engine_ready" not in s.log("worker")


def real(engine: str, role: str = "both") -> dict[str, Any]:
    args: dict[str, Any] = {"max_total_tokens": 4096} if engine == "sglang" else {"kv_cache_memory_bytes": 2**28}
    return {
        "model": "m", "engine": engine, "role": role, "path": str(shallow_model()), "chat_template": str(TEMPLATE),
        "max_model_len": 1024, "max_running": 4, "args": args,
    }  # fmt: skip


def parts(s: Stack) -> list[psutil.Process]:
    """The engine's processes, as they were started. The exit guard, which is none of them, has a session of its own."""
    below = worker_process(s, "worker").children(recursive=True)
    return sorted((p for p in below if os.getsid(p.pid) != p.pid), key=lambda p: p.create_time())


@pytest.mark.real_engine
@pytest.mark.parametrize(
    ("pool", "number"),
    [
        pytest.param(real("vllm"), 0, id="vllm"),
        pytest.param(real("sglang"), 0, id="sglang's scheduler"),
        pytest.param(real("sglang"), 1, id="sglang's detokenizer"),
        pytest.param(real("sglang", "prefill"), 0, id="sglang-prefill"),
        pytest.param(real("sglang", "decode"), 0, id="sglang-decode"),
    ],
)
def test_a_part_of_an_idle_engine_stands_still_goes_on_and_dies(
    valkey_url: str, tmp_path: Path, pool: dict[str, Any], number: int
) -> None:
    """Its worker leaves routing, comes back, and ends, with all that is left of the engine."""
    env = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with worker_of(valkey_url, tmp_path, pool, **env) as s:
        engine = parts(s)
        stands = engine[number]
        stands.suspend()
        wait_until(lambda: not in_routing(s), "it has left routing", 60)
        stands.resume()
        wait_until(lambda: in_routing(s), "it is back", 60)
        assert s.names["worker"].poll() is None
        stands.kill()
        wait_until(lambda: not in_routing(s), "it has left routing for good", 60)
        wait_until(lambda: s.names["worker"].poll() is not None, "it has ended", 120)
        wait_until(lambda: not any(process.is_running() for process in engine), "nothing is left of its engine", 60)
        assert "engine_of_no_use" in s.log("worker")
