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
from app.messages import Delta, Done, KeptRequest, ResponseContext, TokenLogprob, encode
from app.openai.body import MOST
from app.store import Wire
from app.tenants.quotas import Quota
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
    made = await s.create(MINE, {"a": "b"}, [item("1")])
    assert await s.find(made.id, MINE) == made
    for ask in (s.find(made.id, OTHERS), s.items(made.id, OTHERS), s.add(made.id, OTHERS, [item("2")])):
        with pytest.raises(ConversationGone):
            await ask
    await s.add(made.id, MINE, [item("2"), item("3")])
    first, _, last = await s.items(made.id, MINE)
    taken = int(await redis.hget("test:kept-bytes", "key:mine"))  # type: ignore[misc]
    await s.remove(made.id, MINE, last)
    await s.remove(made.id, MINE, last)
    assert (await s.items(made.id, MINE))[0] == first
    assert int(await redis.hget("test:kept-bytes", "key:mine")) == taken - len(last) - 32  # type: ignore[misc]
    with pytest.raises(RequestError, match="items"):
        await s.add(made.id, MINE, [item(str(i)) for i in range(MOST)])
    with pytest.raises(KeptFull):
        await store(wire, taken, 2**20).add(made.id, MINE, [item("4"), item("5")])
    await s.delete(made.id, MINE)
    assert not await redis.keys("test:conversation*")
    assert not await redis.hgetall("test:kept-bytes")  # type: ignore[misc]


async def test_a_change_of_metadata_counts_and_lets_it_live_on(wire: Wire, redis: "Redis") -> None:
    """As long as it lives, so does what is counted of it."""
    s = store(wire)
    made = await s.create(MINE, {}, [item("1")])
    account, expiring = KEYS.kept_account()
    before = int(await redis.hget(account, "key:mine"))  # type: ignore[misc]
    await redis.zadd(expiring, {f"{made.id}|{MINE}": 1})
    assert (await s.update(made.id, MINE, {"a": "b" * 100})).metadata == (await s.find(made.id, MINE)).metadata
    assert 100 <= int(await redis.hget(account, "key:mine")) - before < 120  # type: ignore[misc]
    assert (await redis.zscore(expiring, f"{made.id}|{MINE}") or 0) / 1000 > time.time() + 20
    with pytest.raises(ConversationGone):
        await s.update(made.id, OTHERS, {})
    find = s.find

    async def then_deleted(*given: Any) -> Any:
        found = await find(*given)
        await store(wire).delete(*given)
        return found

    s.find = then_deleted  # type: ignore[method-assign]
    with pytest.raises(ConversationGone):
        await s.update(made.id, MINE, {})
    assert not await redis.keys("test:conversation*")


@pytest.mark.parametrize("most", [(2000, 2**20), (2**20, 2000)], ids=["of_key", "of_all"])
async def test_metadata_grow_within_the_room_there_is_and_always_shrink(
    wire: Wire, redis: "Redis", most: tuple[int, int]
) -> None:
    """One key filled the space of all clients by changes of metadata, which asked for no room."""
    s, short, long = store(wire, *most), {"a": "b"}, {"a": "b" * 1000}
    made = [await s.create(MINE, short, []) for _ in range(3)]
    full = await s.update(made[0].id, MINE, {"a": "b" * 300})
    with pytest.raises(KeptFull, match="Delete some"):
        await s.update(made[1].id, MINE, long)
    assert await s.find(made[1].id, MINE) == made[1]
    assert int(await redis.hget("test:kept-bytes", "key:mine")) <= 2000  # type: ignore[misc]
    smaller = store(wire, 10, 10)  # as when the quota was made smaller
    for metadata in (full.metadata, {"a": "c" * 300}, short):
        assert (await smaller.update(full.id, MINE, metadata)).metadata == metadata
    with pytest.raises(KeptFull):
        await smaller.update(full.id, MINE, {"a": "bc"})
    of_tenant = Quota(2**20, of_tenant=True)
    if most[0] == 2000:
        assert (await s.update(made[1].id, MINE, long, of_tenant)).metadata == long


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
    made = await conversations.create(MINE, {}, [])
    kept, answers = asked(made.id), ResumableStore(wire, KEYS, ApiId("a"), 30)
    await answers.put(kept)
    end = ConversationEnd({}, conversations)
    await end(kept, 0, LOG)
    await end(kept, 0, LOG)
    said = await conversations.items(made.id, MINE)
    assert b'"logprobs":[]' in said[1]
    assert [b'"Hello."' in raw for raw in said] == [True, False]
    assert await answers.adopt(R, ApiId("a")) is not None
    with pytest.raises(Lost):
        await end(kept, 0, LOG)
    await end(kept, 1, LOG)
    assert await conversations.items(made.id, MINE) == said
    await conversations.delete(made.id, MINE)
    await end(kept, 1, LOG)
    with pytest.raises(ConversationGone):
        await conversations.find(made.id, MINE)


async def test_a_response_is_in_its_conversation_before_its_end_is_visible(wire: Wire) -> None:
    conversations, answers = store(wire), ResumableStore(wire, KEYS, ApiId("a"), 30)
    made = await conversations.create(MINE, {}, [])
    kept, seen = asked(made.id), []

    async def at_end(*given: Any) -> None:
        seen.append(await answers.written(R))
        await ConversationEnd({}, conversations)(*given)

    await answers.put(kept)
    owner = AnswerOwner(answers, never, at_end)
    call = FakeCall([1, 2])
    call.prompt_tokens = 1
    owner.start(kept, call)
    log = EventLog(answers, owner, kept)
    while batch := await log.batch():
        last = batch[-1]
    assert isinstance(last, Done)
    assert len(await conversations.items(made.id, MINE)) == 2
    assert not any(isinstance(event, Done) for batch in seen[0] for event in batch)


async def test_a_long_conversation_is_read_in_parts(wire: Wire) -> None:
    """From either end, in order, no part longer than others can wait for: and no more of it than is wanted."""
    conversations = ConversationStore(wire, KEYS, 30, 2**26, 2**26)
    sizes = [300_000] * 5 + [3_000_000, 1] + [10] * 1500
    items = [item(str(i)) | {"content": "x" * size} for i, size in enumerate(sizes)]
    made = await conversations.create(MINE, {}, items)
    whole = await conversations.items(made.id, MINE)
    assert [orjson.loads(raw)["id"] for raw in whole] == [str(i) for i in range(len(sizes))]
    for newest_first, wanted in ((False, whole), (True, whole[::-1])):
        parts = [part async for part in conversations.parts(made.id, MINE, newest_first=newest_first)]
        assert [raw for part in parts for raw in part] == wanted
        assert all(len(part) == 1 or sum(map(len, part)) <= 2**20 for part in parts)
        assert len(parts) > 4
    some = await conversations.items(made.id, MINE, 1_000_000)
    assert whole[: len(some)] == some
    assert len(some) < 6


async def test_what_is_read_in_parts_is_of_one_time(wire: Wire) -> None:
    """An item that is removed between two parts moves those behind it: none of them is left out, and none is twice."""
    conversations = ConversationStore(wire, KEYS, 30, 2**26, 2**26)
    items = [item(str(i)) | {"content": "x" * 600_000} for i in range(6)]
    made = await conversations.create(MINE, {}, items)
    first, tries = (await conversations.items(made.id, MINE))[0], 0

    async def read() -> list[bytes]:
        nonlocal tries
        tries += 1
        found: list[bytes] = []
        async for part in conversations.parts(made.id, MINE):
            found += part
            if tries == 1:
                await conversations.remove(made.id, MINE, first)
        return found

    found = await conversations.unchanged(read)
    assert [orjson.loads(raw)["id"] for raw in found] == ["1", "2", "3", "4", "5"]
    assert tries == 2
    with pytest.raises(ConversationGone):
        async for _ in conversations.parts(made.id, MINE):
            await conversations.delete(made.id, MINE)
    changing = await conversations.create(MINE, {}, items)

    async def never_quiet() -> None:
        async for _ in conversations.parts(changing.id, MINE):
            await conversations.add(changing.id, MINE, [item("more")])

    with pytest.raises(Saturated, match="change"):
        await conversations.unchanged(never_quiet)


async def test_backlogs_of_many_readers_are_written_piece_by_piece(wire: Wire) -> None:
    """However many read a long log again, between two turns of the event loop one of them has one piece of it."""
    answers = ResumableStore(wire, KEYS, ApiId("a"), 30)
    kept, ticks = asked(ConversationId("")), 0
    got: list[int] = []
    await answers.put(kept)
    batches = [encode([Delta(R, 0, "x", [1])]) for _ in range(199)] + [encode([Done(R, 0)])]
    await answers.note(kept, 0, batches, ended=True)
    owner = AnswerOwner(answers, never, never)

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def read() -> int:
        log, events = EventLog(answers, owner, kept), 0
        while batch := await log.batch():
            events += len(batch)
            if len(batch) > 4:
                got.append(ticks)
        return events

    ticking = asyncio.create_task(tick())
    assert await asyncio.gather(*(read() for _ in range(6))) == [200] * 6
    ticking.cancel()
    assert len(got) > 60
    assert len(set(got)) == len(got)


async def test_of_two_responses_at_once_one_is_made_in_a_conversation(wire: Wire) -> None:
    """At whichever replica; the lock is free when that one has ended, or was cancelled, and nobody has to free it."""
    conversations = store(wire)
    made = await conversations.create(MINE, {}, [item("1")])
    a, b = ResumableStore(wire, KEYS, ApiId("a"), 30), ResumableStore(wire, KEYS, ApiId("b"), 30)
    one, two = asked(made.id), replace(asked(made.id), id=RequestId("resp_1"))
    both = await asyncio.gather(a.put(one, read=1), b.put(two, read=1), return_exceptions=True)
    assert [type(done) for done in both].count(ConversationLocked) == 1
    first, second = (one, two) if both[0] == one.id else (two, one)
    assert await a.put(first, read=1) == first.id  # sent twice
    with pytest.raises(ConversationLocked):
        await conversations.add(made.id, MINE, [item("2")])
    await conversations.add_response(made.id, MINE, [item("2")], first.id, 0)
    with pytest.raises(ConversationLocked):  # until its end is written
        await b.put(second, read=2)
    await a.note(first, 0, LOG, ended=True)
    with pytest.raises(ConversationLocked):  # it has not read what was added
        await b.put(second, read=1)
    assert await b.put(second, read=2) == second.id
    await a.cancel(second.id, [Done(second.id, 0)])
    await conversations.add(made.id, MINE, [item("3")])
    assert await a.put(replace(one, id=RequestId("resp_2")), read=3)
    assert [b'"%d"' % n in raw for n, raw in enumerate(await conversations.items(made.id, MINE), 1)] == [True] * 3


async def test_a_repeated_request_joins_the_response_that_locks_its_conversation(wire: Wire) -> None:
    made = await store(wire).create(MINE, {}, [])
    answers = ResumableStore(wire, KEYS, ApiId("a"), 30)
    assert await answers.put(asked(made.id), join="k", read=0) == R
    assert await answers.put(replace(asked(made.id), id=RequestId("resp_1")), join="k", read=0) == R


async def test_a_response_that_redis_has_forgotten_and_gets_again_locks_its_conversation(
    wire: Wire, redis: "Redis"
) -> None:
    """Unless another one was begun meanwhile, which keeps the lock; a deleted conversation isn't made again."""
    made, gone = await store(wire).create(MINE, {}, []), asked(ConversationId("conv_gone"))
    answers, other = ResumableStore(wire, KEYS, ApiId("a"), 30), replace(asked(made.id), id=RequestId("resp_1"))
    for begun, busy in ((R, R), (other.id, other.id)):
        await redis.delete(KEYS.kept(R))
        if begun == other.id:
            await answers.put(other, read=0)
        await answers.note(asked(made.id), 0, LOG[:1], ended=False)
        assert await redis.hget(KEYS.conversation(made.id)[0], "busy") == KEYS.kept(busy).encode()  # type: ignore[misc]
    await answers.put(gone, read=0)
    assert not await redis.exists(*KEYS.conversation(ConversationId("conv_gone")))
