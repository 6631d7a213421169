"""A fleet on real vLLM with tiers: routing knows what lies in host memory and in the store, also after a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.explained import asked
from tests.shallow import shallow_model
from tests.stack import Stack, leases, stack, stop, valkey, wait_until

pytestmark = [pytest.mark.timeout(400), pytest.mark.tiers]

POOL, MODEL, BLOCK = "decode-pool-a", "tiny", 32
ROOM = 20  # blocks of the engine's own cache
_BLOCK_BYTES = 4 * 2 * 3 * 64 * 4 * BLOCK
ENV = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Stack]:
    pool = {
        "model": MODEL, "engine": "vllm", "path": str(shallow_model()), "block_size": BLOCK, "max_model_len": 512,
        "max_running": 4, "args": {"kv_cache_memory_bytes": ROOM * _BLOCK_BYTES},
        "tiers": {"host_gb": 0.02, "disk": str(tmp_path / "kv")},
    }  # fmt: skip
    (tmp_path / "stack").mkdir()
    (tmp_path / "redis").mkdir()
    with valkey(tmp_path / "redis") as url, stack(url, tmp_path / "stack", {POOL: pool}, **ENV) as s:
        s.api()
        yield s


def in_index(s: Stack) -> dict[int, int]:
    """Number of blocks that each number of a tier has."""
    counts = s.redis.hgetall(f"{s.deployment}:tiered-count:{POOL}")
    numbers = [field for field in counts if len(field) == 4]  # others are the marks of writes
    return {int.from_bytes(number, "big"): int(counts[number]) for number in numbers}


def test_evicted_and_after_a_restart_a_prompt_is_loaded_and_routing_knows(served: Stack, tmp_path: Path) -> None:
    worker = served.worker(POOL, "first")
    served.wait_ready(1, MODEL)
    text, route, cached_tokens = asked(served, MODEL, "Once")
    assert cached_tokens == 0
    assert "blocks_in_host" not in route
    for other in ("Then", "Later"):  # evict it
        asked(served, MODEL, other)
    (lease,) = leases(served, POOL)
    wait_until(lambda: in_index(served).get(lease.store, 0) >= 30, "the store's blocks in the index")

    again, route, cached_tokens = asked(served, MODEL, "Once")
    assert (again, route["blocks_in_host"] > 8, cached_tokens > 8 * BLOCK) == (text, True, True)
    wait_until(lambda: leases(served, POOL)[0].speeds.host_bytes_per_s > 0, "a measured speed")

    stop(worker)
    index_ids = {name[4:].hex() for name in served.redis.hkeys(f"{served.deployment}:stored:{POOL}")}
    files = {path.name.partition("-")[0][-16:] for path in (tmp_path / "kv").rglob("*-0")}
    assert index_ids == files  # what the index has of the store is what is there
    served.worker(POOL, "second")
    served.wait_ready(1, MODEL)
    wait_until(lambda: leases(served, POOL)[0].store == lease.store, "the same store's number")
    again, route, cached_tokens = asked(served, MODEL, "Once")
    assert (again, route["blocks_in_store"] > 8, cached_tokens > 8 * BLOCK) == (text, True, True)
    wait_until(lambda: leases(served, POOL)[0].speeds.store_bytes_per_s > 0, "a measured speed")
