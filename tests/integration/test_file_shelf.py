"""How much an API key may keep: counted by what is known of its files, over a real Redis."""

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from app.api.openai.file_expiry import Sweeper, forget
from app.batch.file_store import FileShelf
from app.batch.records import StoredFile
from app.batch.storage import Storage
from app.errors import FileQuotaUsed
from app.ids import KeyId, new_file_id
from app.keys import Keys
from app.messages import encode
from app.store import Wire

KEYS = Keys("shelf")
ALICE, BOB = KeyId("key_alice"), KeyId("key_bob")


def file(size: int, key: KeyId = ALICE, expires: int | None = None) -> StoredFile:
    return StoredFile(new_file_id(), key, "in.jsonl", "batch", size, 1, expires)


async def fits(shelf: FileShelf, brought: StoredFile, quota: int = 100) -> bool:
    try:
        await shelf.add(brought, quota)
    except FileQuotaUsed:
        return False
    return True


async def test_files_that_come_at_once_do_not_pass_the_quota(redis: "Redis", wire: Wire) -> None:
    """Over all replicas: here, two connections. Another key has its own."""
    other = Wire(redis)
    came = await asyncio.gather(*(fits(FileShelf(w, KEYS), file(13)) for w in (wire, other) * 20))
    other.close()
    shelf = FileShelf(wire, KEYS)
    assert sum(came) == 7
    assert await shelf.used(ALICE) == 91
    assert len((await shelf.owned(ALICE, "", 100, newest_first=True))[0]) == 7
    assert await fits(shelf, file(9))
    assert not await fits(shelf, file(1))
    assert await fits(shelf, file(100, BOB))


async def test_what_is_deleted_or_expires_is_given_back_once(tmp_path: Path, redis: "Redis", wire: Wire) -> None:
    storage, shelf = Storage(str(tmp_path)), FileShelf(wire, KEYS)
    kept, deleted, expired = file(10), file(40), file(50, expires=2)
    for each in (kept, deleted, expired):
        assert await fits(shelf, each)
    for _ in range(2):
        await forget(storage, shelf, deleted)
        assert await shelf.used(ALICE) == 60
    await Sweeper(storage, shelf).sweep()
    assert await shelf.used(ALICE) == 10
    await forget(storage, shelf, kept)
    assert await redis.keys(f"{KEYS.prefix}*") == []


async def test_what_a_batch_made_counts_and_is_never_refused(redis: "Redis", wire: Wire) -> None:
    """Results are not lost for want of room; they leave less for what is uploaded. Made anew, they count once."""
    shelf, made = FileShelf(wire, KEYS), file(300)
    await shelf.add(made)
    await shelf.add(StoredFile(made.id, ALICE, made.name, "batch_output", 90, 1))
    assert await shelf.used(ALICE) == 90
    assert await fits(shelf, file(10))
    assert not await fits(shelf, file(1))


async def test_files_of_before_there_was_a_quota_count(redis: "Redis", wire: Wire) -> None:
    old = file(95)
    await redis.set(KEYS.file(old.id), encode(old))
    await redis.zadd(KEYS.files_of(ALICE), {old.id: 1.0})
    shelf = FileShelf(wire, KEYS)
    assert not await fits(shelf, file(6))
    assert await fits(shelf, file(5))
    await shelf.remove(old)
    assert await shelf.used(ALICE) == 5


async def test_there_are_only_so_many_files_however_small(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes memory of Redis."""
    monkeypatch.setattr("app.batch.file_store._MOST", 3)
    shelf = FileShelf(wire, KEYS)
    assert [await fits(shelf, file(0)) for _ in range(5)] == [True, True, True, False, False]


async def test_a_file_that_is_written_down_twice_counts_once(redis: "Redis", wire: Wire) -> None:
    """A lost connection does not tell what got through."""
    shelf, one = FileShelf(wire, KEYS), file(100)
    assert await fits(shelf, one)
    assert await fits(shelf, one)
    assert await shelf.used(ALICE) == 100
