"""Tests that the counts for quotas are those of what is there, whatever was lost or counted by older versions."""

from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.api.resumable.conversations import ConversationStore
from app.api.resumable.kept_account import KeptAccounts
from app.api.resumable.store import ResumableStore
from app.batch.file_account import FileAccounts
from app.batch.file_store import FileStore
from app.batch.records import RECORD, StoredFile
from app.dispatch.media.media_account import MediaAccounts
from app.ids import ApiId, KeyId, new_file_id
from app.keys import Keys
from app.store import Wire
from app.store.scripts import HOLD_MEDIA
from app.tenants.directory import Directory
from app.tenants.stored_audit import StoredAudit
from tests.integration.test_resumable import batch, kept

KEYS = Keys("audited")
ALICE, BOB = KeyId("key_alice"), KeyId("key_bob")


async def stored(wire: Wire) -> None:
    """Answers, a conversation and files of two keys."""
    answers = ResumableStore(wire, KEYS, ApiId("a"), 30)
    for number, key in enumerate((ALICE, ALICE, BOB)):
        one = replace(kept(request=f"chatcmpl-{number}"), key=key)
        await answers.put(one)
        await answers.note(one, 0, [batch(1, 2, 3)], ended=False)
    await ConversationStore(wire, KEYS, 30, 10**6, 10**6).create(BOB, {"a": "b"}, [{"x": "y"}])
    for request, whose, *sizes in (("r1", f"{ALICE}|red", 5, 7), ("r2", f"{BOB}|red", 5)):
        samples = [part for size in sizes for part in (f"sha{size}", size)]
        await wire.execute([("EVAL", HOLD_MEDIA, 3, *KEYS.media_held(), request, whose, 60_000, "99 99 99", *samples)])
    files = FileStore(wire, KEYS)
    for key, size in ((ALICE, 10), (ALICE, 20), (BOB, 30)):
        await wire.execute([("HSET", KEYS.key_owners(), key, "team")])
        await files.add(StoredFile(new_file_id(), key, "a.jsonl", "batch", size, 1))


async def counts(redis: "Redis") -> dict[str, Any]:
    account, _ = KEYS.kept_account()
    files = {key: int(await redis.get(KEYS.file_bytes(key)) or 0) for key in (ALICE, BOB)}
    files["all"] = int(await redis.get(KEYS.file_bytes_in_all()) or 0)
    return {"kept": await redis.hgetall(account), "files": files, "media": await redis.hgetall(KEYS.media_held()[0])}


def audit(wire: Wire) -> StoredAudit:
    files = FileAccounts(wire, KEYS, Directory(wire, KEYS))
    return StoredAudit((KeptAccounts(wire, KEYS), files, MediaAccounts(wire, KEYS)))


async def test_what_is_counted_right_stays_as_it_is(redis: "Redis", wire: Wire) -> None:
    await stored(wire)
    before = await counts(redis)
    assert before["files"] == {ALICE: 30 + 2 * RECORD, BOB: 30 + RECORD, "all": 60 + 3 * RECORD}
    one = audit(wire)
    for _ in range(3):
        await one.look()
    assert await counts(redis) == before


@pytest.mark.parametrize("what", ["a key's", "all", "nobody's", "lost", "files", "all files", "a file", "samples"])
async def test_what_is_counted_wrong_is_corrected_at_the_second_look(redis: "Redis", wire: Wire, what: str) -> None:
    """Something may just be coming at the first look."""
    await stored(wire)
    account, _ = KEYS.kept_account()
    right = await counts(redis)
    if what == "a key's":
        await redis.hincrby(account, f"key:{ALICE}", 500)
    elif what == "all":
        await redis.hincrby(account, "all", -100)
    elif what == "nobody's":
        await redis.hset(account, "id:chatcmpl-gone", 70)
        await redis.hincrby(account, "all", 70)
        await redis.hincrby(account, "key:revoked", 70)
    elif what == "lost":
        await redis.hdel(account, f"key:{BOB}")
    elif what == "files":
        await redis.incrby(KEYS.file_bytes(ALICE), -RECORD)
    elif what == "all files":  # as after an older version, which has counted none
        await redis.delete(KEYS.file_bytes_in_all())
    elif what == "samples":
        await redis.hincrby(KEYS.media_held()[0], "tenant:red", 3)
        await redis.hdel(KEYS.media_held()[0], f"key:{BOB}")
    else:  # a record that Redis has lost
        lost_file = (await redis.zrange(KEYS.files_of(BOB), 0, -1))[0].decode()
        await redis.delete(KEYS.file(lost_file))
        right["files"] |= {BOB: 0, "all": 30 + 2 * RECORD}
    wrong = await counts(redis)
    one = audit(wire)
    await one.look()
    assert await counts(redis) == wrong
    await one.look()
    assert await counts(redis) == right


async def test_what_changes_between_looks_is_left_alone(redis: "Redis", wire: Wire) -> None:
    await stored(wire)
    account, _ = KEYS.kept_account()
    one = audit(wire)
    for number in range(4):
        await redis.hincrby(account, "all", 1 + number)
        await one.look()
    assert (await KeptAccounts(wire, KEYS).read())["all"].missing == -10


async def test_what_has_changed_since_it_was_read_is_not_overwritten(redis: "Redis", wire: Wire) -> None:
    """The change is that of a request that stores something, or of the audit of another replica."""
    await stored(wire)
    account, _ = KEYS.kept_account()
    await redis.hincrby(account, "all", 100)
    accounts = KeptAccounts(wire, KEYS)
    state = (await accounts.read())["all"]
    assert await accounts.correct("all", state)
    assert not await accounts.correct("all", state)
    assert (await accounts.read())["all"].missing == 0
