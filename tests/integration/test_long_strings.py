"""Long strings of kept requests and conversations: in the storage for as long as these are kept, and never in Redis."""

import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.api.resumable import long_strings
from app.api.resumable.chat_index import ChatIndex
from app.api.resumable.conversations import ConversationStore
from app.api.resumable.kept_account import KeptAccounts
from app.api.resumable.long_strings import LONG, LongStrings
from app.api.resumable.store import ResumableStore, Unkept
from app.batch.storage import Storage
from app.errors import ConversationLocked, KeptFull, MediaLost, RequestError, StorageDown
from app.ids import ApiId, KeyId, RequestId
from app.messages.events import Failed
from app.messages.kept import KeptRequest, ResponseContext, StoredChat
from app.schemas.body import MOST
from app.store import Wire
from tests.background import until
from tests.integration.test_resumable import END, KEYS, A, B, Going, batch, ended, quick

pytestmark = pytest.mark.both_servers
__all__ = ["quick"]

MINE = KeyId("mine")
PHOTO = "data:image/jpeg;base64," + "Qk0+/9" * LONG
BODY, HISTORY = orjson.dumps({"picture": PHOTO, "text": "What is it?"}), orjson.dumps({"items": [PHOTO, "before"]})
SIZE = 2 * len(PHOTO)


def kept(name: str = "resp_1", **fields: Any) -> KeptRequest:
    now = time.time()
    return KeptRequest(
        RequestId(name), "chat", BODY, now, now + 60, MINE, response=ResponseContext(history=HISTORY), **fields
    )


def item(name: str, picture: str = PHOTO) -> dict[str, Any]:
    return {"id": name, "type": "message", "role": "user", "content": [{"image_url": picture}]}


def files(path: Path) -> list[str]:
    return sorted(one.parent.name for one in path.glob("kept/*/*"))


async def longest_value(redis: "Redis") -> int:
    """Bytes of the largest key."""
    return max([await redis.memory_usage(name, samples=0) or 0 for name in await redis.keys("*")], default=0)


async def counted(redis: "Redis", account: str = "key:mine") -> int:
    return int(await redis.hget("test:kept-bytes", account) or 0)  # type: ignore[misc]


@pytest.fixture
def strings(tmp_path: Path) -> LongStrings:
    return LongStrings(Storage(str(tmp_path)))


def answers(wire: Wire, strings: LongStrings, api: ApiId = A, *most: int, keep_s: float = 30) -> ResumableStore:
    return ResumableStore(wire, KEYS, api, keep_s, *most, strings=strings)


async def test_a_kept_request_is_whole_for_every_replica(
    wire: Wire, redis: "Redis", strings: LongStrings, tmp_path: Path
) -> None:
    one = kept(chat=StoredChat("m"))
    await answers(wire, strings).put(one)
    assert files(tmp_path) == [one.id] * 2
    assert await longest_value(redis) < 10_000
    other = answers(wire, strings, B)
    assert (await other.find(one.id, MINE)).kept == one
    short = (await other.find(one.id, MINE, short=True)).kept
    assert orjson.loads(short.body) == {"picture": "-", "text": "What is it?"}
    assert await counted(redis) > SIZE, "its client has them, wherever they are"
    adoption = await other.adopt(one.id, A)
    assert adoption is not None
    assert adoption.kept == one
    await other.note(one, 1, [END], ended=True, whole=True)
    index = ChatIndex(wire, KEYS, strings=strings)
    assert (await index.find(one.id, MINE))[0].kept == one
    assert (await index.find(one.id, MINE, short=True))[0].kept == short
    sizes = await KeptAccounts(wire, KEYS).read()
    assert all(size.counted == size.there for size in sizes.values())
    await other.delete(one.id)
    assert not files(tmp_path)
    assert not await counted(redis)


async def test_a_request_without_long_strings_has_no_files(wire: Wire, strings: LongStrings, tmp_path: Path) -> None:
    one = replace(kept(), body=b'{"picture": "short"}', response=ResponseContext())
    s = answers(wire, strings)
    await s.put(one)
    assert (await s.find(one.id, MINE)).kept == one
    assert await strings.whole(one.id, one.body) is one.body
    assert not files(tmp_path)


async def test_what_is_refused_or_joins_another_leaves_no_files(
    wire: Wire, redis: "Redis", strings: LongStrings, tmp_path: Path
) -> None:
    with pytest.raises(KeptFull):
        await answers(wire, strings, A, SIZE, SIZE).put(kept())
    assert not files(tmp_path)
    s = answers(wire, strings)
    await s.put(kept(), join="k")
    assert await s.put(kept("resp_2"), join="k") == "resp_1"
    assert await s.put(kept(), join="k") == "resp_1", "sent twice"
    assert files(tmp_path) == ["resp_1"] * 2
    conversations = ConversationStore(wire, KEYS, 30, 2**30, 2**30, strings)
    conversation = await conversations.create(MINE, {}, [])
    busy = replace(kept("resp_3"), response=ResponseContext(history=HISTORY, conversation=conversation.id))
    await s.put(busy, read=0)
    with pytest.raises(ConversationLocked):
        await s.put(replace(busy, id=RequestId("resp_4")), read=0)
    with pytest.raises(ConversationLocked):
        await conversations.add(conversation.id, MINE, [item("1")])
    assert set(files(tmp_path)) == {"resp_1", "resp_3"}
    assert await counted(redis) < 2 * SIZE + 10_000


async def test_what_redis_has_lost_is_written_again_with_its_strings(
    wire: Wire, redis: "Redis", strings: LongStrings, tmp_path: Path
) -> None:
    one, s = kept(), answers(wire, strings)
    await s.put(one)
    await redis.flushdb()
    await strings.delete(one.id)
    await s.note(one, 0, [batch(1)], ended=False)
    assert (await s.find(one.id, MINE)).kept == one


async def test_an_answer_that_is_not_kept_any_more_counts_with_its_strings(
    wire: Wire, redis: "Redis", strings: LongStrings
) -> None:
    one = kept()
    s = answers(wire, strings, A, SIZE + 50_000, SIZE + 50_000)
    await s.put(one)
    with pytest.raises(Unkept):
        await s.note(one, 0, [batch(*range(20_000))], ended=False)
    assert SIZE < await counted(redis) < SIZE + 50_000
    await s.delete(one.id)
    assert not await counted(redis)


async def test_a_missing_string_is_said_and_the_rest_can_be_read_and_deleted(
    wire: Wire, strings: LongStrings, tmp_path: Path
) -> None:
    """Replicas that do not share the media store have it so."""
    one, s = kept(chat=StoredChat("m")), answers(wire, strings)
    await s.put(one)
    await s.note(one, 0, [END], ended=True, whole=True)
    elsewhere = LongStrings(Storage(str(tmp_path / "elsewhere")))
    other, index = answers(wire, elsewhere, B), ChatIndex(wire, KEYS, strings=elsewhere)
    for ask in (other.find(one.id, MINE), index.find(one.id, MINE)):
        with pytest.raises(MediaLost, match="XYLEM_MEDIA_STORE"):
            await ask
    assert (await other.find(one.id, MINE, short=True)).kept.id == one.id
    await other.delete(one.id)


async def test_an_answer_whose_strings_are_gone_ends_with_one_error(
    wire: Wire, redis: "Redis", strings: LongStrings, tmp_path: Path
) -> None:
    """Its replica died, and no other one has the picture."""
    one = kept()
    await answers(wire, strings).put(one)
    await strings.delete(one.id)
    async with Going(answers(wire, strings, B), [1]) as other:
        await until(lambda: ended(redis, one.id))
        assert not other.begun
    (events,) = await answers(wire, strings).written(one.id)
    assert [(type(event), getattr(event, "code", "")) for event in events] == [(Failed, MediaLost.code)]
    assert not await answers(wire, strings).owned_by(B)


async def test_an_adoption_that_the_storage_interrupts_is_completed(
    wire: Wire, redis: "Redis", strings: LongStrings, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = kept()
    await answers(wire, strings).put(one)
    real, failures = strings.whole, [StorageDown(), StorageDown()]

    async def whole(owner: str, raw: bytes) -> bytes:
        if failures:
            raise failures.pop()
        return await real(owner, raw)

    monkeypatch.setattr(strings, "whole", whole)
    async with Going(answers(wire, strings, B), [1]) as other:
        await until(lambda: ended(redis, one.id))
    assert len(other.begun) == 1
    assert not failures


async def test_without_a_storage_nothing_is_kept(wire: Wire, redis: "Redis", tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    with pytest.raises(StorageDown):
        await answers(wire, LongStrings(Storage(str(tmp_path)))).put(kept())
    assert not await redis.keys("*")


async def test_items_of_a_conversation_come_back_one_by_one(
    wire: Wire, redis: "Redis", strings: LongStrings, tmp_path: Path
) -> None:
    s = ConversationStore(wire, KEYS, 30, 2**30, 2**30, strings)
    conversation = await s.create(MINE, {}, [item("1"), item("2", "short")])
    empty_bytes = await counted(redis)
    await s.add(conversation.id, MINE, [item("3")])
    assert await longest_value(redis) < 10_000
    assert [orjson.loads(raw) for raw in await s.items(conversation.id, MINE)] == [
        item("1"), item("2", "short"), item("3"),
    ]  # fmt: skip
    assert [len(part) async for part in s.parts(conversation.id, MINE)] == [1, 1, 1]
    assert len(await s.items(conversation.id, MINE, most_bytes=10)) == 1, "no more are read than there is room for"
    await s.remove(conversation.id, MINE, (await s.items(conversation.id, MINE))[2])
    assert await counted(redis) == empty_bytes
    assert files(tmp_path) == [conversation.id]
    with pytest.raises(KeptFull):
        await ConversationStore(wire, KEYS, 30, 10, 10, strings).add(conversation.id, MINE, [item("4")])
    with pytest.raises(RequestError):
        await s.add(conversation.id, MINE, [item("4"), *([item("5", "")] * MOST)])
    assert files(tmp_path) == [conversation.id]
    await s.delete(conversation.id, MINE)
    assert not files(tmp_path)
    assert not await counted(redis)


async def test_a_responses_items_are_said_once_with_their_pictures(
    wire: Wire, strings: LongStrings, tmp_path: Path
) -> None:
    s = ConversationStore(wire, KEYS, 30, 2**30, 2**30, strings)
    conversation = await s.create(MINE, {}, [])
    await answers(wire, strings).put(replace(kept(), response=ResponseContext(conversation=conversation.id)))
    for _ in range(2):
        await s.add_response(conversation.id, MINE, [item("1")], RequestId("resp_1"), 0)
    (raw,) = await s.items(conversation.id, MINE)
    assert orjson.loads(raw) == item("1")
    await s.delete(conversation.id, MINE)
    assert set(files(tmp_path)) == {"resp_1"}


async def test_what_has_expired_is_swept_and_what_is_new_is_not(
    wire: Wire, redis: "Redis", strings: LongStrings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = ConversationStore(wire, KEYS, 30, 2**30, 2**30, strings)
    live, other = await s.create(MINE, {}, [item("1")]), await s.create(MINE, {}, [item("1")])
    await answers(wire, strings).put(kept())
    await answers(wire, strings).put(kept("resp_2"))
    await strings.sweep(wire, KEYS)
    assert len(set(files(tmp_path))) == 4
    await redis.delete(*KEYS.conversation(other.id), KEYS.kept(RequestId("resp_2")))
    await strings.sweep(wire, KEYS)
    assert len(set(files(tmp_path))) == 4, "they may be of what is just being kept"
    monkeypatch.setattr(long_strings, "_NEW_S", -5.0)
    await strings.sweep(wire, KEYS)
    assert set(files(tmp_path)) == {live.id, "resp_1"}
    await LongStrings(Storage(str(tmp_path / "empty"))).sweep(wire, KEYS)
