"""Stored chats in a real Redis: whose they are, which are there, and what they are counted for."""

import time
from typing import Any

import pytest
from redis.asyncio import Redis

from app.api.resumable.chat_index import ChatIndex
from app.api.resumable.store import ResumableStore
from app.errors import KeptFull, RequestNotFound
from app.ids import ApiId, KeyId, RequestId
from app.keys import Keys
from app.messages.events import Delta, Done, Failed
from app.messages.kept import KeptRequest, StoredChat
from app.messages.wire import encode
from app.store import Wire
from app.tenants.stored_bytes import Quota

pytestmark = pytest.mark.both_servers

KEYS = Keys("test")
MINE, YOURS = KeyId("key_1"), KeyId("key_2")
END = encode([Done(RequestId("r"), 0)])


async def stored(
    wire: Wire, name: str, *, key: KeyId = MINE, ago_s: float = 0, end: bytes = END, keep_s: float = 30, **metadata: str
) -> KeptRequest:
    store = ResumableStore(wire, KEYS, ApiId("a"), keep_s)
    came = time.time() - ago_s
    record = KeptRequest(
        RequestId(name), "chat", b"{}", came, came + ago_s + 60, key, chat=StoredChat("m", metadata or {"a": "b"})
    )
    await store.put(record)
    await store.note(record, 0, [encode([Delta(record.id, 0, "x", [1])])], ended=False)
    await store.note(record, 0, [encode([Delta(record.id, 0, "x", [1])]), end], ended=True, whole=end == END)
    return record


async def names(index: ChatIndex, key: KeyId = MINE, **fields: Any) -> list[str]:
    query: dict[str, Any] = {"after": None, "limit": 10, "newest_first": False, "is_match": lambda _: True} | fields
    page, _ = await index.page(key, **query)
    return [*page]


async def test_a_stored_chat_is_its_api_keys_alone(wire: Wire) -> None:
    index = ChatIndex(wire, KEYS)
    one = await stored(wire, "one")
    assert (await index.find(one.id, MINE))[0].kept == one
    with pytest.raises(RequestNotFound):
        await index.find(one.id, YOURS)
    assert (await names(index), await names(index, YOURS)) == (["one"], [])


async def test_unfinished_and_failed_chats_are_not_listed(wire: Wire) -> None:
    index = ChatIndex(wire, KEYS)
    await stored(wire, "failed", end=encode([Failed(RequestId("r"), 0, "engine_failed", "")]))
    store = ResumableStore(wire, KEYS, ApiId("a"), 30)
    going = KeptRequest(RequestId("going"), "chat", b"{}", time.time(), time.time() + 60, MINE, chat=StoredChat("m"))
    await store.put(going)
    for name in ("failed", "going", "never"):
        with pytest.raises(RequestNotFound):
            await index.find(RequestId(name), MINE)
    assert await names(index) == []


async def test_pages_go_on_behind_the_last_one_in_either_order(wire: Wire) -> None:
    """The same holds where few of many chats match."""
    index = ChatIndex(wire, KEYS)
    for i in range(6):
        await stored(wire, f"c{i}", ago_s=6 - i, odd=str(i % 2))
    assert await names(index, after="c1", limit=2) == ["c2", "c3"]
    assert await names(index, after="c4", newest_first=True) == ["c3", "c2", "c1", "c0"]
    assert await index.page(MINE, None, 2, newest_first=False, is_match=lambda chat: chat.metadata["odd"] == "1") == (
        ["c1", "c3"],
        True,
    )
    assert await index.page(MINE, "c3", 2, newest_first=False, is_match=lambda chat: chat.metadata["odd"] == "1") == (
        ["c5"],
        False,
    )


async def test_one_that_has_expired_goes_from_the_list(redis: "Redis", wire: Wire) -> None:
    index = ChatIndex(wire, KEYS)
    expired_chat = await stored(wire, "gone")
    await stored(wire, "there", ago_s=1)  # the list is in the order in which they came
    await redis.delete(KEYS.kept(expired_chat.id))
    assert await names(index) == ["there"]
    assert await redis.zcard(KEYS.chats_of(MINE)) == 1
    await stored(wire, "old", ago_s=86_500, keep_s=60)
    await stored(wire, "new", keep_s=60)
    assert await redis.zrange(KEYS.chats_of(MINE), 0, -1) == [b"there", b"new"]
    assert 29_000 < await redis.pttl(KEYS.chats_of(MINE)) <= 60_000


async def test_changed_metadata_are_counted_for_the_api_key(redis: "Redis", wire: Wire) -> None:
    """Nothing is written for a chat that has gone."""
    index = ChatIndex(wire, KEYS)
    one = await stored(wire, "one", a="b")
    account = KEYS.kept_account()[0]
    before = int(await redis.hget(account, f"key:{MINE}"))
    await index.change(one.id, StoredChat("m", {"a": "b" * 101}))
    assert (await index.find(one.id, MINE))[1].metadata == {"a": "b" * 101}
    assert 100 <= int(await redis.hget(account, f"key:{MINE}")) - before <= 110
    await ResumableStore(wire, KEYS, ApiId("a"), 30).delete(one.id)
    assert not await redis.hexists(account, f"key:{MINE}")
    with pytest.raises(RequestNotFound):
        await index.change(one.id, StoredChat("m"))
    await redis.delete(KEYS.kept(one.id))
    with pytest.raises(RequestNotFound):
        await index.change(one.id, StoredChat("m"))
    assert not await redis.exists(KEYS.kept(one.id))


async def test_metadata_grow_within_the_room_there_is_and_always_shrink(redis: "Redis", wire: Wire) -> None:
    """One key filled the space of all clients by changes of metadata, which asked for no room."""
    one = await stored(wire, "one", a="b" * 100)
    used_bytes = int(await redis.hget(KEYS.kept_account()[0], f"key:{MINE}"))
    of_key, of_all = ChatIndex(wire, KEYS, used_bytes, 2**20), ChatIndex(wire, KEYS, 2**20, used_bytes)
    for index, metadata in ((of_key, {"a": "b" * 101}), (of_all, {"a": "b" * 101})):
        with pytest.raises(KeptFull):
            await index.change(one.id, StoredChat("m", metadata))
        assert (await index.find(one.id, MINE))[1].metadata == {"a": "b" * 100}
    smaller = ChatIndex(wire, KEYS, 10, 10)  # as when the quota was made smaller
    await smaller.change(one.id, StoredChat("m", {"a": "c" * 100}))
    await smaller.change(one.id, StoredChat("m"))
    with pytest.raises(KeptFull):
        await smaller.change(one.id, StoredChat("m", {"a": "b"}))
    await of_key.change(one.id, StoredChat("m", {"a": "b" * 500}), Quota(2**20))
    assert int(await redis.hget(KEYS.kept_account()[0], f"key:{MINE}")) > used_bytes


async def test_a_chat_that_another_replica_ends_is_stored_as_well(wire: Wire) -> None:
    first, other = (ResumableStore(wire, KEYS, ApiId(api), 30) for api in "ab")
    record = KeptRequest(RequestId("moved"), "chat", b"{}", time.time(), time.time() + 60, MINE, chat=StoredChat("m"))
    await first.put(record)
    adoption = await other.adopt(record.id, ApiId("a"))
    assert adoption is not None
    await other.note(adoption.kept, adoption.epoch, [END], ended=True, whole=True)
    assert await names(ChatIndex(wire, KEYS)) == ["moved"]
