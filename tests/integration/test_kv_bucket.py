"""A store of KV in a bucket: bounded by use, encrypted, its index true, and a miss when it is gone."""

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog.testing
from moto.server import ThreadedMotoServer
from redis.asyncio import Redis

from app.engines.mock.stored_blocks import StoredBlocks
from app.ids import WorkerId
from app.keys import Keys
from app.kv.store_index import StoreIndex, short_name
from app.kv.tier_ledger import TierLedger
from app.kv_store.block_store import open_store
from app.pools.schema import Tiers
from app.store import Wire
from tests.integration.conftest import POOL, nobody_told
from tests.s3 import s3_server
from workers.engine.store_cleaner import StoreCleaner

KEYS = Keys("test")
BLOCK_BYTES = 84


@pytest.fixture
def s3() -> Iterator[ThreadedMotoServer]:
    with s3_server() as server:
        yield server


@pytest.fixture
def url(s3: ThreadedMotoServer, tmp_path: Path) -> str:
    return f"s3://bucket/{tmp_path.name}"


def blocks(url: str, key: Path | None = None) -> StoredBlocks:
    return StoredBlocks(url, Tiers(host_gb=1, disk=url, key_file=key), 32, ())


async def indexed(wire: Wire, stored: StoredBlocks, count: int) -> StoreIndex:
    """Stores so many blocks of one prompt, and tells the index of them."""
    ledger = TierLedger()
    index = StoreIndex(wire, KEYS, POOL, "s3", nobody_told)
    for number in range(count):
        assert stored.put(number, number)
        ledger.add([number], "STORAGE", short_name)
    await index.check(ledger)
    await index.write(ledger)
    return index


def cleaner(url: str, most: float, index: StoreIndex, wire: Wire) -> StoreCleaner:
    return StoreCleaner(open_store(url), most, index, wire, KEYS.cleaning(POOL), WorkerId("w"), 60)


async def test_what_others_remove_from_a_bucket_is_forgotten(redis: "Redis", wire: Wire, url: str) -> None:
    store = blocks(url)
    index = await indexed(wire, store, 5)
    lost_path = next(one.path for one in open_store(url).all())
    open_store(url).delete(lost_path)
    await cleaner(url, math.inf, index, wire).look()
    assert {name.hex() for name in await index.known()} == {path.rpartition("/")[2] for path in paths(url)}
    assert len(await index.known()) == 4


async def test_a_bucket_is_bounded_and_loses_what_was_used_longest_ago(redis: "Redis", wire: Wire, url: str) -> None:
    """The blocks that were written longest ago may stay."""
    index = await indexed(wire, blocks(url), 10)
    write_time = max(one.used for one in open_store(url).all())
    while sorted(one.used for one in open_store(url).all())[-2] < write_time + 1:  # S3 tells whole seconds
        await asyncio.sleep(0.1)
        blocks(url).use([0, 1])  # of another worker, which has noted nothing yet
    await cleaner(url, 3 * BLOCK_BYTES, index, wire).look()
    assert sorted(int(path[-16:], 16) for path in paths(url)) == [0, 1]
    assert sorted(await index.known()) == [short_name(0), short_name(1)]


def test_a_bucket_can_be_encrypted(url: str, tmp_path: Path) -> None:
    for name in ("key", "other"):
        (tmp_path / name).write_bytes(name.encode().ljust(32))
    assert blocks(url, tmp_path / "key").put(7, 0)
    (path,) = paths(url)
    assert (open_store(url).get(path) or b"").startswith(b"XKE1")
    assert blocks(url, tmp_path / "key").read(7)
    assert not blocks(url, tmp_path / "other").read(7)
    assert paths(url) == [], "what nobody can read is removed"


def test_a_bucket_that_goes_away_is_a_miss(s3: ThreadedMotoServer, url: str) -> None:
    store = blocks(url)
    assert store.put(7, 0)
    s3.stop()
    with structlog.testing.capture_logs() as logs:
        assert not store.read(7)
        assert not store.put(8, 0)
        store.use([7, 8])
    assert [line["action"] for line in logs] == ["kv_store_failed"]


async def test_a_cleaner_outlives_a_bucket_that_goes_away(
    redis: "Redis",
    wire: Wire,
    s3: ThreadedMotoServer,
    url: str,
) -> None:
    """Its known blocks stay known: that it can't be listed doesn't say that they are gone."""
    index = await indexed(wire, blocks(url), 5)
    s3.stop()
    looking = StoreCleaner(open_store(url), 0, index, wire, KEYS.cleaning(POOL), WorkerId("w"), 0.01)
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(looking.run())
        while len([line for line in logs if line["event"] == "store_not_cleaned"]) < 2:
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()
    assert len(await index.known()) == 5


def paths(url: str) -> list[str]:
    return [one.path for one in open_store(url).all()]
