"""A fleet of mock engines with tiers: routing knows what lies in host memory and in the store that all share."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.explained import asked
from tests.s3 import access
from tests.stack import Stack, leases, mock_pool, stack, stop, valkey, wait_until

POOL, BLOCK = "decode-pool-a", 32


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Stack]:
    """Each worker has room for one prompt on its device, and for many in host memory."""
    args = {"step_ms": 1.0, "total_blocks": 32, "handoff": {"block_bytes": 2**16}}
    tiers = {"host_gb": 0.02, "disk": str(tmp_path / "kv")}
    pool = mock_pool(max_model_len=1024, block_size=BLOCK, **args) | {"tiers": tiers}
    (tmp_path / "stack").mkdir()
    (tmp_path / "redis").mkdir()
    with valkey(tmp_path / "redis") as url, stack(url, tmp_path / "stack", {POOL: pool}) as s:
        s.api()
        yield s


def in_store(s: Stack) -> int:
    """Number of the store's blocks that the index has."""
    counts = s.redis.hgetall(f"{s.deployment}:tiered-count:{POOL}")
    numbers = {lease.store for lease in leases(s, POOL)}
    return sum(int(count) for number, count in counts.items() if int.from_bytes(number, "big") in numbers)


def test_evicted_prompts_are_loaded_by_their_worker_by_another_one_and_after_a_restart(served: Stack) -> None:
    first = served.worker(POOL, "first")
    served.wait_ready(1)
    text, route, hits = asked(served, "mock", "Once")
    assert (hits, "blocks_in_host" in route) == (0, False)
    for other in ("Then", "Later"):  # evict it
        asked(served, "mock", other)
    wait_until(lambda: in_store(served) >= 40, "the store's blocks in the index")

    again, route, hits = asked(served, "mock", "Once")
    assert (again, route["blocks_in_host"] > 8, route["blocks_in_store"], hits > 8 * BLOCK) == (text, True, 0, True)
    wait_until(lambda: leases(served, POOL)[0].speeds.host_bytes_per_s > 0, "a measured speed")

    (lease,) = leases(served, POOL)
    second = served.worker(POOL, "second")
    served.wait_ready(2)
    wait_until(lambda: {lease.store for lease in leases(served, POOL)} == {lease.store}, "one store")
    stop(first)
    served.wait_ready(1)
    again, route, hits = asked(served, "mock", "Once")  # which the second worker never saw
    assert (again, route["blocks_in_store"] > 8, hits > 8 * BLOCK) == (text, True, True)
    wait_until(lambda: leases(served, POOL)[0].speeds.store_bytes_per_s > 0, "a measured speed")

    stop(second)
    served.worker(POOL, "restarted")
    served.wait_ready(1)
    wait_until(lambda: [lease.store for lease in leases(served, POOL)] == [lease.store], "the same store's number")
    again, route, hits = asked(served, "mock", "Later")
    assert (route["blocks_in_store"] > 8, hits > 8 * BLOCK) == (True, True)


def test_a_worker_whose_bucket_hangs_ends_when_it_is_told_to(tmp_path: Path) -> None:
    for name in ("stack", "redis"):
        (tmp_path / name).mkdir()
    pool = mock_pool() | {"tiers": {"host_gb": 1.0, "disk": "s3://bucket/kv", "disk_look_s": 1.0}}
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        valkey(tmp_path / "redis") as url,
        stack(url, tmp_path / "stack", {POOL: pool}, **access(f"http://127.0.0.1:{silent.getsockname()[1]}")) as s,
    ):
        worker = s.worker(POOL)
        asking, _ = silent.accept()  # for a list of what is there
        with asking:
            stop(worker)
        assert "Traceback" not in s.log("worker")
        assert worker.returncode == 0
