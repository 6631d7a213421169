"""Tests how much an API key may keep: counted by the records of its files, over a real Redis."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from app.api.openai.file_expiry import FileExpiry, forget
from app.batch.file_store import FileStore
from app.batch.records import RECORD, StoredFile
from app.batch.storage import Storage
from app.errors import FileGone, FileQuotaUsed, RequestError
from app.ids import KeyId, new_file_id
from app.keys import Keys
from app.messages.wire import encode
from app.store import Command, Wire
from app.tenants.stored_bytes import Quota

pytestmark = pytest.mark.both_servers

KEYS = Keys("shelf")
ALICE, BOB = KeyId("key_alice"), KeyId("key_bob")


def file(size: int, key: KeyId = ALICE, expires: int | None = None) -> StoredFile:
    return StoredFile(new_file_id(), key, "in.jsonl", "batch", size, 1, expires)


async def fits(file_store: FileStore, brought: StoredFile, files: int = 1, quota: int = 100) -> bool:
    """`quota`: of bytes, besides the records of so many `files`."""
    try:
        await file_store.add(brought, Quota(quota + files * RECORD))
    except FileQuotaUsed:
        return False
    return True


async def test_files_that_come_at_once_do_not_pass_the_quota(redis: "Redis", wire: Wire) -> None:
    """The quota holds over all replicas: here, two connections. Another key has its own."""
    other = Wire(redis)
    came = await asyncio.gather(*(fits(FileStore(w, KEYS), file(13), 8) for w in (wire, other) * 20))
    other.close()
    file_store = FileStore(wire, KEYS)
    assert sum(came) == 7
    assert (await file_store.used(ALICE)).own == 91 + 7 * RECORD
    assert len((await file_store.owned(ALICE, "", 100, newest_first=True))[0]) == 7
    assert not await fits(file_store, file(10), 8)
    assert await fits(file_store, file(9), 8)
    assert not await fits(file_store, file(0), 8), "its record counts"
    assert not await fits(file_store, file(1), 9)
    assert await fits(file_store, file(100, BOB))


async def test_all_files_together_have_a_bound_of_their_own(redis: "Redis", wire: Wire) -> None:
    """The bound holds before a byte comes, and when a file is written down."""
    file_store, quota = FileStore(wire, KEYS), Quota(10**6, in_all=100 + 2 * RECORD)
    first = file(60)
    await file_store.add(first, quota)
    await file_store.check_room(BOB, 40 + RECORD, quota)
    for attempt in (file_store.check_room(BOB, 41 + RECORD, quota), file_store.add(file(41, BOB), quota)):
        with pytest.raises(FileQuotaUsed, match="of all clients"):
            await attempt
    await file_store.add(file(40, BOB), quota)
    assert await file_store.used(BOB) == (40 + RECORD, 100 + 2 * RECORD)
    await file_store.remove(first)
    await file_store.remove(first)
    assert await file_store.used(BOB) == (40 + RECORD, 40 + RECORD)


async def test_a_file_that_is_not_understood_keeps_no_other_from_being_listed_or_from_expiring(
    tmp_path: Path, redis: "Redis", wire: Wire
) -> None:
    """The file stays for the version that knows it."""
    storage, file_store = Storage(str(tmp_path)), FileStore(wire, KEYS)
    odd, kept_file, expired_file = file(1, expires=1), file(10), file(50, expires=2)
    for each in (odd, kept_file, expired_file):
        await file_store.add(each)
    await redis.set(KEYS.file(odd.id), b"\xc1")
    await FileExpiry(storage, storage, file_store).sweep()
    assert await file_store.owned(ALICE, "", 100, newest_first=True) == ([kept_file], False)
    assert await file_store.all_of(ALICE) == [kept_file]
    with pytest.raises(FileGone):
        await file_store.find(odd.id, ALICE)
    assert await redis.zrange(KEYS.files_expiring(), 0, -1) == [odd.id.encode()]


async def test_what_is_deleted_or_expires_is_given_back_once(tmp_path: Path, redis: "Redis", wire: Wire) -> None:
    storage, file_store = Storage(str(tmp_path)), FileStore(wire, KEYS)
    kept_file, deleted_file, expired_file = file(10), file(40), file(50, expires=2)
    for each in (kept_file, deleted_file, expired_file):
        assert await fits(file_store, each, 3)
    for _ in range(2):
        await forget(storage, file_store, deleted_file)
        assert (await file_store.used(ALICE)).own == 60 + 2 * RECORD
    await FileExpiry(storage, storage, file_store).sweep()
    assert (await file_store.used(ALICE)).own == 10 + RECORD
    await forget(storage, file_store, kept_file)
    assert await redis.keys(f"{KEYS.prefix}*") == []


async def test_what_a_batch_made_counts_and_is_never_refused(redis: "Redis", wire: Wire) -> None:
    """Results are not lost for want of room; they leave less for what is uploaded. Made anew, they count once."""
    file_store, output_file = FileStore(wire, KEYS), file(300)
    await file_store.add(output_file)
    await file_store.add(StoredFile(output_file.id, ALICE, output_file.name, "batch_output", 90, 1))
    assert (await file_store.used(ALICE)).own == 90 + RECORD
    assert await fits(file_store, file(10), 2)
    assert not await fits(file_store, file(1), 3)


async def test_files_of_before_there_was_a_quota_count(redis: "Redis", wire: Wire) -> None:
    old = file(95)
    await redis.set(KEYS.file(old.id), encode(old))
    await redis.zadd(KEYS.files_of(ALICE), {old.id: 1.0})
    file_store = FileStore(wire, KEYS)
    assert not await fits(file_store, file(6), 2)
    assert await fits(file_store, file(5), 2)
    await file_store.remove(old)
    assert (await file_store.used(ALICE)).own == 5 + RECORD


async def test_there_are_only_so_many_files_however_small(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes memory of Redis."""
    monkeypatch.setattr("app.batch.file_store._MOST", 3)
    file_store = FileStore(wire, KEYS)
    assert [await fits(file_store, file(0), 10) for _ in range(5)] == [True, True, True, False, False]


async def test_a_file_that_is_written_down_twice_counts_once(redis: "Redis", wire: Wire) -> None:
    """A lost connection does not tell what got through."""
    file_store, one = FileStore(wire, KEYS), file(100)
    assert await fits(file_store, one)
    assert await fits(file_store, one)
    assert (await file_store.used(ALICE)).own == 100 + RECORD


async def test_each_file_is_in_one_page_also_if_others_come_and_go_meanwhile(redis: "Redis", wire: Wire) -> None:
    file_store = FileStore(wire, KEYS)
    files = [file(1) for _ in range(7)]
    for one in files:
        await file_store.add(one)

    class Busy(Wire):
        """Between any two of whose commands another client makes a file, and deletes it before the next two."""

        new: StoredFile | None = None

        async def execute(self, commands: Sequence[Command]) -> list[Any]:
            replies = await super().execute(commands)
            if self.new is None:
                await file_store.add(new := file(1))
                self.new = new
            else:
                await file_store.remove(self.new)
                self.new = None
            return replies

    busy = Busy(redis)
    read: list[StoredFile] = []
    more = True
    while more:
        after = read[-1].id if read else ""
        page, more = await FileStore(busy, KEYS).owned(ALICE, after, 2, newest_first=True)
        read += page
    busy.close()
    assert read == files[::-1]


async def test_a_short_page_of_a_rare_purpose_takes_few_turns(redis: "Redis", wire: Wire) -> None:
    """A client's other such requests, and those of others, wait for it."""
    turns = 0

    class Counted(Wire):
        async def execute(self, commands: Sequence[Command]) -> list[Any]:
            nonlocal turns
            turns += 1
            return await super().execute(commands)

    for _ in range(600):
        await FileStore(wire, KEYS).add(file(0), Quota(10**9))
    counting_wire = Counted(redis)
    assert await FileStore(counting_wire, KEYS).owned(ALICE, "", 1, newest_first=True, purpose="vision") == ([], False)
    assert turns < 10
    counting_wire.close()


async def test_a_page_behind_a_file_that_was_deleted_is_refused(wire: Wire) -> None:
    """The page would look like the last one: a client that deletes each page's files would leave the rest."""
    file_store = FileStore(wire, KEYS)
    files = [file(1) for _ in range(3)]
    for one in files:
        await file_store.add(one)
    await file_store.remove(files[1])
    with pytest.raises(RequestError, match="'after'"):
        await file_store.owned(ALICE, files[1].id, 1, newest_first=True)
    assert (await file_store.owned(ALICE, files[2].id, 1, newest_first=True))[0] == [files[0]]
