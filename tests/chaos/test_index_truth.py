"""Verdicts of `make chaos` on the prefix index: that it is true, or what is wrong with it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.ids import PoolId
from app.keys import Keys
from app.kv.prefix_index import packed
from tests.chaos.fleet import Fleet, pools
from tests.chaos.index_truth import compared
from tests.stack import leases, wait_until

POOL = PoolId("decode-pool-a")
KEYS = Keys("xylem")
BLOCK = b"12345678"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Fleet]:
    """A worker that has evicted blocks from its cache and from its host memory."""
    pool_configs = {POOL: pools(tmp_path / "kv")[POOL]}
    pool_configs[POOL]["tiers"] |= {"disk_gb": 1.0, "disk_look_s": 1.0}
    with Fleet(tmp_path / "fleet", pool_configs, apis=1, workers=1) as fleet:
        for number in range(8):
            body = {"model": "mock", "prompt": f"{number} " * 600, "max_tokens": 100, "ignore_eos": True}
            httpx.post(f"{fleet.urls()[0]}/v1/completions", json=body, timeout=60).raise_for_status()
        yield fleet


def test_an_index_that_claims_what_is_not_there_or_lacks_what_is_there_is_wrong(served: Fleet) -> None:
    comparison = compared(served, POOL)
    assert comparison.wrong == []
    assert comparison.claims > 160 + 100  # blocks in cache and host memory: others are in the store

    (lease,) = leases(served.stack, POOL)
    cache_entries, tier_entries = KEYS.cached(POOL)[0], KEYS.tiered(POOL)[0]
    for entries, number in (
        (cache_entries, lease.caches[0]),
        (tier_entries, lease.hosts[0]),
        (tier_entries, lease.store),
    ):
        served.redis.hset(entries, BLOCK, packed(number))  # past its count, which workers look at
        assert any("is claimed and not there" in one for one in compared(served, POOL, 0).wrong)
        served.redis.hdel(entries, BLOCK)
        assert compared(served, POOL, 0).wrong == []
    for entries, number in ((cache_entries, lease.caches[0]), (tier_entries, lease.hosts[0])):
        block_numbers: dict[bytes, bytes] = served.redis.hgetall(entries)  # type: ignore[assignment]
        block = next(block for block, numbers in block_numbers.items() if packed(number) in numbers)
        served.redis.hdel(entries, block)
        assert any("is there and not claimed" in one for one in compared(served, POOL, 0).wrong)
        served.redis.hset(entries, block, block_numbers[block])


def test_a_file_that_others_remove_is_claimed_until_a_worker_has_looked(served: Fleet) -> None:
    assert compared(served, POOL).wrong == []
    assert served.store is not None
    file = next(path for path in served.store.rglob("*") if path.is_file())
    name = packed(leases(served.stack, POOL)[0].store) + bytes.fromhex(file.name)
    assert served.redis.hexists(KEYS.stored(POOL), name)
    file.unlink()
    wait_until(lambda: not served.redis.hexists(KEYS.stored(POOL), name), "a worker has looked")
    assert compared(served, POOL).wrong == []
