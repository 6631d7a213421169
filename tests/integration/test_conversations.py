"""Conversations against a real Redis: whose they are, what they take, and that a response is said in them once."""

import asyncio
import time
from typing import Any

import orjson
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.api.openai.responses.conversation_end import ConversationEnd
from app.api.resumable.conversations import ConversationStore
from app.api.resumable.event_log import EventLog
from app.api.resumable.owner import AnswerOwner
from app.api.resumable.store import Lost, ResumableStore
from app.errors import ConversationGone, ConversationLocked, KeptFull, RequestError, Saturated
from app.ids import ApiId, ConversationId, KeyId, RequestId
from app.keys import Keys
from app.messages.events import Delta, Done, TokenLogprob
from app.messages.kept import KeptRequest, ResponseContext
from app.messages.wire import encode
from app.schemas.body import MOST
from app.store import Wire
from app.tenants.stored_bytes import Quota
from tests.integration.test_resumable import FakeCall

pytestmark = pytest.mark.both_servers

KEYS = Keys("test")
MINE, OTHERS = KeyId("mine"), KeyId("others")
R = RequestId("resp_0123456789abcdef01234567")


def store(wire: Wire, *most: int) -> ConversationStore:
    return ConversationStore(wire, KEYS, 30, *(most or (2**20, 2**20)))


def item(name: str) -> dict[str, Any]:
    return {"id": name, "type": "message", "role": "user", "content": "x"}


async def test_a_conversation_is_its_keys_own_and_takes_of_its_room(wire: Wire, redis: "Redis") -> None:
    s = store(wire)
    conversation = await s.create(MINE, {"a": "b"}, [item("1")])
    assert await s.find(conversation.id, MINE) == conversation
    for ask in (
        s.find(conversation.id, OTHERS),
        s.items(conversation.id, OTHERS),
        s.add(conversation.id, OTHERS, [item("2")]),
    ):
        with pytest.raises(ConversationGone):
            await ask
    await s.add(conversation.id, MINE, [item("2"), item("3")])
    first, _, last = await s.items(conversation.id, MINE)
    used_bytes = int(await redis.hget("test:kept-bytes", "key:mine"))  # type: ignore[misc]
    await s.remove(conversation.id, MINE, last)
    await s.remove(conversation.id, MINE, last)
    assert (await s.items(conversation.id, MINE))[0] == first
    assert int(await redis.hget("test:kept-bytes", "key:mine")) == used_bytes - len(last) - 32  # type: ignore[misc]
    with pytest.raises(RequestError, match="items"):
        await s.add(conversation.id, MINE, [item(str(i)) for i in range(MOST)])
    with pytest.raises(KeptFull):
        await store(wire, used_bytes, 2**20).add(conversation.id, MINE, [item("4"), item("5")])
    await s.delete(conversation.id, MINE)
    assert not await redis.keys("test:conversation*")
    assert not await redis.hgetall("test:kept-bytes")  # type: ignore[misc]


async def test_a_change_of_metadata_counts_and_lets_it_live_on(wire: Wire, redis: "Redis") -> None:
    """The count of it lives as long as the conversation does."""
    s = store(wire)
    conversation = await s.create(MINE, {}, [item("1")])
    account, expiring = KEYS.kept_account()
    before = int(await redis.hget(account, "key:mine"))  # type: ignore[misc]
    await redis.zadd(expiring, {f"{conversation.id}|{MINE}": 1})
    assert (await s.update(conversation.id, MINE, {"a": "b" * 100})).metadata == (
        await s.find(conversation.id, MINE)
    ).metadata
    assert 100 <= int(await redis.hget(account, "key:mine")) - before < 120  # type: ignore[misc]
    assert (await redis.zscore(expiring, f"{conversation.id}|{MINE}") or 0) / 1000 > time.time() + 20
    with pytest.raises(ConversationGone):
        await s.update(conversation.id, OTHERS, {})
    find = s.find

    async def then_deleted(*given: Any) -> Any:
        result = await find(*given)
        await store(wire).delete(*given)
        return result

    s.find = then_deleted  # type: ignore[method-assign]
    with pytest.raises(ConversationGone):
        await s.update(conversation.id, MINE, {})
    assert not await redis.keys("test:conversation*")


@pytest.mark.parametrize("most", [(2000, 2**20), (2**20, 2000)], ids=["of_key", "of_all"])
async def test_metadata_grow_within_the_room_there_is_and_always_shrink(
    wire: Wire, redis: "Redis", most: tuple[int, int]
) -> None:
    """One key filled the space of all clients by changes of metadata, which asked for no room."""
    s, short, long = store(wire, *most), {"a": "b"}, {"a": "b" * 1000}
    conversations = [await s.create(MINE, short, []) for _ in range(3)]
    full = await s.update(conversations[0].id, MINE, {"a": "b" * 300})
    with pytest.raises(KeptFull, match="Delete some"):
        await s.update(conversations[1].id, MINE, long)
    assert await s.find(conversations[1].id, MINE) == conversations[1]
    assert int(await redis.hget("test:kept-bytes", "key:mine")) <= 2000  # type: ignore[misc]
    smaller = store(wire, 10, 10)  # as when the quota was made smaller
    for metadata in (full.metadata, {"a": "c" * 300}, short):
        assert (await smaller.update(full.id, MINE, metadata)).metadata == metadata
    with pytest.raises(KeptFull):
        await smaller.update(full.id, MINE, {"a": "bc"})
    of_tenant = Quota(2**20, of_tenant=True)
    if most[0] == 2000:
        assert (await s.update(conversations[1].id, MINE, long, of_tenant)).metadata == long


def asked(conversation: ConversationId) -> KeptRequest:
    now = time.time()
    body = b'{"model": "m", "input": "Hello.", "conversation": "%b"}' % conversation.encode()
    context = ResponseContext(history=b"{}", conversation=conversation)
    return KeptRequest(R, "response", body, now, now + 60, MINE, response=context)


async def never(*_: Any) -> Any:
    raise AssertionError


LOG = [encode([Delta(R, 0, "Hi.", [1], finish="stop", logprobs=[TokenLogprob("Hi.", 1, -1.0)])]), encode([Done(R, 0)])]


async def test_a_response_is_said_once_and_by_its_owner_only(wire: Wire) -> None:
    """Its next owner says it again, to no effect; a former one is told so, and a conversation may be gone."""
    conversations = store(wire)
    conversation = await conversations.create(MINE, {}, [])
    request, answers = asked(conversation.id), ResumableStore(wire, KEYS, ApiId("a"), 30)
    await answers.put(request)
    end = ConversationEnd({}, conversations)
    await end(request, 0, LOG)
    await end(request, 0, LOG)
    items = await conversations.items(conversation.id, MINE)
    assert b'"logprobs":[]' in items[1]
    assert [b'"Hello."' in raw for raw in items] == [True, False]
    assert await answers.adopt(R, ApiId("a")) is not None
    with pytest.raises(Lost):
        await end(request, 0, LOG)
    await end(request, 1, LOG)
    assert await conversations.items(conversation.id, MINE) == items
    await conversations.delete(conversation.id, MINE)
    await end(request, 1, LOG)
    with pytest.raises(ConversationGone):
        await conversations.find(conversation.id, MINE)


async def test_a_response_is_in_its_conversation_before_its_end_is_visible(wire: Wire) -> None:
    conversations, answers = store(wire), ResumableStore(wire, KEYS, ApiId("a"), 30)
    conversation = await conversations.create(MINE, {}, [])
    request, logs_at_end = asked(conversation.id), []

    async def at_end(*given: Any) -> None:
        logs_at_end.append(await answers.written(R))
        await ConversationEnd({}, conversations)(*given)

    await answers.put(request)
    owner = AnswerOwner(answers, never, at_end)
    call = FakeCall([1, 2])
    call.prompt_tokens = 1
    owner.start(request, call)
    log = EventLog(answers, owner, request)
    while batch := await log.batch():
        last = batch[-1]
    assert isinstance(last, Done)
    assert len(await conversations.items(conversation.id, MINE)) == 2
    assert not any(isinstance(event, Done) for batch in logs_at_end[0] for event in batch)


async def test_a_long_conversation_is_read_in_parts(wire: Wire) -> None:
    """Its parts come from either end, in order, no longer than others can wait for, and no more than is wanted."""
    conversations = ConversationStore(wire, KEYS, 30, 2**26, 2**26)
    sizes = [300_000] * 5 + [3_000_000, 1] + [10] * 1500
    items = [item(str(i)) | {"content": "x" * size} for i, size in enumerate(sizes)]
    conversation = await conversations.create(MINE, {}, items)
    whole = await conversations.items(conversation.id, MINE)
    assert [orjson.loads(raw)["id"] for raw in whole] == [str(i) for i in range(len(sizes))]
    for newest_first, expected_items in ((False, whole), (True, whole[::-1])):
        parts = [part async for part in conversations.parts(conversation.id, MINE, newest_first=newest_first)]
        assert [raw for part in parts for raw in part] == expected_items
        assert all(len(part) == 1 or sum(map(len, part)) <= 2**20 for part in parts)
        assert len(parts) > 4
    some = await conversations.items(conversation.id, MINE, 1_000_000)
    assert whole[: len(some)] == some
    assert len(some) < 6


async def test_what_is_read_in_parts_is_of_one_time(wire: Wire) -> None:
    """An item that is removed between two parts moves those behind it: none of them is left out, and none is twice."""
    conversations = ConversationStore(wire, KEYS, 30, 2**26, 2**26)
    items = [item(str(i)) | {"content": "x" * 600_000} for i in range(6)]
    conversation = await conversations.create(MINE, {}, items)
    first, tries = (await conversations.items(conversation.id, MINE))[0], 0

    async def read() -> list[bytes]:
        nonlocal tries
        tries += 1
        contents: list[bytes] = []
        async for part in conversations.parts(conversation.id, MINE):
            contents += part
            if tries == 1:
                await conversations.remove(conversation.id, MINE, first)
        return contents

    contents = await conversations.unchanged(read)
    assert [orjson.loads(raw)["id"] for raw in contents] == ["1", "2", "3", "4", "5"]
    assert tries == 2
    with pytest.raises(ConversationGone):
        async for _ in conversations.parts(conversation.id, MINE):
            await conversations.delete(conversation.id, MINE)
    changing = await conversations.create(MINE, {}, items)

    async def never_quiet() -> None:
        async for _ in conversations.parts(changing.id, MINE):
            await conversations.add(changing.id, MINE, [item("more")])

    with pytest.raises(Saturated, match="change"):
        await conversations.unchanged(never_quiet)


async def test_backlogs_of_many_readers_are_written_piece_by_piece(wire: Wire) -> None:
    """One of many readers gets one piece of a long log between two turns of the event loop, however many there are."""
    answers = ResumableStore(wire, KEYS, ApiId("a"), 30)
    request, ticks = asked(ConversationId("")), 0
    piece_ticks: list[int] = []
    await answers.put(request)
    batches = [encode([Delta(R, 0, "x", [1])]) for _ in range(199)] + [encode([Done(R, 0)])]
    await answers.note(request, 0, batches, ended=True)
    owner = AnswerOwner(answers, never, never)

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def read() -> int:
        log, events = EventLog(answers, owner, request), 0
        while batch := await log.batch():
            events += len(batch)
            if len(batch) > 4:
                piece_ticks.append(ticks)
        return events

    ticking = asyncio.create_task(tick())
    assert await asyncio.gather(*(read() for _ in range(6))) == [200] * 6
    ticking.cancel()
    assert len(piece_ticks) > 60
    assert len(set(piece_ticks)) == len(piece_ticks)


async def test_of_two_responses_at_once_one_is_made_in_a_conversation(wire: Wire) -> None:
    """The two may be at different replicas.

    The lock is free when the first has ended, or was cancelled, and nobody has to free it.
    """
    conversations = store(wire)
    conversation = await conversations.create(MINE, {}, [item("1")])
    a, b = ResumableStore(wire, KEYS, ApiId("a"), 30), ResumableStore(wire, KEYS, ApiId("b"), 30)
    one, two = asked(conversation.id), replace(asked(conversation.id), id=RequestId("resp_1"))
    both = await asyncio.gather(a.put(one, read=1), b.put(two, read=1), return_exceptions=True)
    assert [type(outcome) for outcome in both].count(ConversationLocked) == 1
    first, second = (one, two) if both[0] == one.id else (two, one)
    assert await a.put(first, read=1) == first.id  # sent twice
    with pytest.raises(ConversationLocked):
        await conversations.add(conversation.id, MINE, [item("2")])
    await conversations.add_response(conversation.id, MINE, [item("2")], first.id, 0)
    with pytest.raises(ConversationLocked):  # until its end is written
        await b.put(second, read=2)
    await a.note(first, 0, LOG, ended=True)
    with pytest.raises(ConversationLocked):  # it has not read what was added
        await b.put(second, read=1)
    assert await b.put(second, read=2) == second.id
    await a.cancel(second.id, [Done(second.id, 0)])
    await conversations.add(conversation.id, MINE, [item("3")])
    assert await a.put(replace(one, id=RequestId("resp_2")), read=3)
    assert [b'"%d"' % n in raw for n, raw in enumerate(await conversations.items(conversation.id, MINE), 1)] == [
        True
    ] * 3


async def test_a_repeated_request_joins_the_response_that_locks_its_conversation(wire: Wire) -> None:
    conversation = await store(wire).create(MINE, {}, [])
    answers = ResumableStore(wire, KEYS, ApiId("a"), 30)
    assert await answers.put(asked(conversation.id), join="k", read=0) == R
    assert await answers.put(replace(asked(conversation.id), id=RequestId("resp_1")), join="k", read=0) == R


async def test_a_response_that_redis_has_forgotten_and_gets_again_locks_its_conversation(
    wire: Wire, redis: "Redis"
) -> None:
    """Unless another one was begun meanwhile, which keeps the lock; a deleted conversation isn't made again."""
    conversation, gone_request = await store(wire).create(MINE, {}, []), asked(ConversationId("conv_gone"))
    answers, other = ResumableStore(wire, KEYS, ApiId("a"), 30), replace(asked(conversation.id), id=RequestId("resp_1"))
    for response, busy in ((R, R), (other.id, other.id)):
        await redis.delete(KEYS.kept(R))
        if response == other.id:
            await answers.put(other, read=0)
        await answers.note(asked(conversation.id), 0, LOG[:1], ended=False)
        assert await redis.hget(KEYS.conversation(conversation.id)[0], "busy") == KEYS.kept(busy).encode()  # type: ignore[misc]
    await answers.put(gone_request, read=0)
    assert not await redis.exists(*KEYS.conversation(ConversationId("conv_gone")))
