"""Kept answers against a real Redis: written once and in order, by one owner at a time, and read to their end."""

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.api.resumable.owner import AnswerOwner, as_kept
from app.api.resumable.replay import Replay
from app.api.resumable.store import Found, Lost, ResumableStore, Unkept
from app.dispatch.answering.generation import Generation
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import ATTEMPTS
from app.errors import DeadlineOver, EngineFailed, KeptFull, RequestNotFound, Saturated, StoreDown
from app.ids import ApiId, RequestId
from app.keys import Keys
from app.messages.events import Delta, Done, Event, Failed
from app.messages.kept import KeptRequest, StoredChat
from app.messages.wire import encode
from app.store import Command, Wire
from tests.background import beside, until

pytestmark = pytest.mark.both_servers

KEYS = Keys("test")
A, B = ApiId("a"), ApiId("b")
R = RequestId("chatcmpl-1")


def kept(deadline_s: float = 60, request: str = R) -> KeptRequest:
    now = time.time()
    return KeptRequest(RequestId(request), "chat", b"{}", now, now + deadline_s, "key")


def resumable_store(wire: Wire, api: ApiId = A, *most: int, keep_s: float = 30) -> ResumableStore:
    return ResumableStore(wire, KEYS, api, keep_s, *most)


def batch(*tokens: int) -> bytes:
    return encode([Delta(R, 0, f"t{t} ", [t]) for t in tokens])


END = encode([Done(R, 0)])


async def tokens(s: ResumableStore, request: RequestId = R) -> list[int]:
    return [t for events in await s.written(request) for e in events if isinstance(e, Delta) for t in e.tokens]


class FakeCall(Generation):
    """A call that an AnswerOwner runs: batches of deltas, then the end or an error."""

    def __init__(self, *batches: list[int], error: Exception | None = None) -> None:
        self.rest, self._error = list(batches), error
        self.cached_tokens = self.prompt_tokens = self.unshown = 0
        self.plan, self.pictures = SimpleNamespace(paintings=()), {}  # type: ignore[assignment]

    async def __aenter__(self) -> "FakeCall":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def deltas(self) -> list[tuple[int, Delta]]:
        if self.rest:
            return [(0, Delta(R, 0, f"t{t} ", [t])) for t in self.rest.pop(0)]
        if self._error is not None:
            raise self._error
        return []

    def count(self, _delta: Delta) -> None: ...


class Going:
    """A Keeper that prepares FakeCalls, and runs."""

    def __init__(self, s: ResumableStore, *rest: list[int]) -> None:
        self.begun: list[Any] = []

        async def prepare(_kept: KeptRequest, begun: Any) -> Any:
            self.begun.append(begun)
            return FakeCall(*rest)

        self.answer_owner = AnswerOwner(s, prepare, adopt_s=0.2)

    async def __aenter__(self) -> "Going":
        self._task = asyncio.create_task(self.answer_owner.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.api.resumable.owner._EVERY_S", 0.05)


def reading(s: ResumableStore, answer_owner: AnswerOwner, k: KeptRequest, skip: int = 0) -> Replay:
    plan = GenerationPlan("chatcmpl", AsyncMock(), [[1]], [AsyncMock(n=1)], 60)
    return Replay(s, answer_owner, plan, Found(k, 0), skip)


async def ended(redis: "Redis", request: RequestId = R) -> bool:
    return bool(await redis.hexists(KEYS.kept(request), "end"))


async def test_who_asks_with_the_same_key_gets_the_first_ones_id(wire: Wire) -> None:
    """The first one may have been sent twice; another API key's client knows nothing of it."""
    one, two = kept(), kept(request="chatcmpl-2")
    assert [await resumable_store(wire).put(one, join="k"), await resumable_store(wire).put(one, join="k")] == [
        one.id,
        one.id,
    ]
    assert await resumable_store(wire, B).put(two, join="k") == one.id
    assert await resumable_store(wire, B).put(replace(two, key="other"), join="k") == two.id
    with pytest.raises(RequestNotFound):
        await resumable_store(wire).find(one.id, "other")
    assert (await resumable_store(wire).find(one.id, "key")).kept == one


async def test_batches_are_written_once_and_in_order_however_often_they_are_sent(redis: "Redis", wire: Wire) -> None:
    """A connection that broke doesn't tell what got through."""
    s, k = resumable_store(wire), kept()
    await s.put(k)
    batches = [batch(1, 2), batch(3), END]
    await s.note(k, 0, batches[:1], ended=False)
    for _ in range(2):
        await s.note(k, 0, batches[:2], ended=False)
        await s.note(k, 0, batches, ended=True)
    assert await tokens(s) == [1, 2, 3]
    assert await redis.xlen(KEYS.log(k.id)) == 3
    assert not await redis.exists(KEYS.kept_of(A))
    assert 29_000 < await redis.pttl(KEYS.log(k.id)) <= 30_000


@pytest.mark.parametrize("lost", ["the end of the log", "the log", "all"])
async def test_what_redis_has_lost_is_written_again(redis: "Redis", wire: Wire, lost: str) -> None:
    """Redis came back without its last second, or with nothing."""
    s, k = resumable_store(wire), kept()
    await s.put(k)
    batches = [batch(1), batch(2), batch(3)]
    for count in (1, 2, 3):
        await s.note(k, 0, batches[:count], ended=False)
    if lost == "the end of the log":
        await redis.delete(KEYS.log(k.id))
        await s.note(k, 0, batches[:1], ended=False)
    elif lost == "the log":
        await redis.delete(KEYS.log(k.id))
    else:
        await redis.flushall()
    batches.append(END)
    await s.note(k, 0, batches, ended=True)
    assert await tokens(s) == [1, 2, 3]
    assert await ended(redis, k.id)
    assert await redis.pttl(KEYS.log(k.id)) > 0


async def test_an_owner_that_was_thought_dead_is_fenced_off(redis: "Redis", wire: Wire) -> None:
    """One of two replicas adopts; the old owner's further writes are refused."""
    k = kept()
    await resumable_store(wire).put(k)
    await resumable_store(wire).note(k, 0, [batch(1)], ended=False)
    c = ApiId("c")
    adoptions = await asyncio.gather(resumable_store(wire, B).adopt(R, A), resumable_store(wire, c).adopt(R, A))
    assert [f.epoch for f in adoptions if f is not None] == [1]
    with pytest.raises(Lost):
        await resumable_store(wire).note(k, 0, [batch(1), batch(9)], ended=False)
    owner = B if adoptions[0] else c
    await resumable_store(wire, owner).note(k, 1, [batch(1), batch(2)], ended=False)
    assert await tokens(resumable_store(wire)) == [1, 2]
    assert await redis.smembers(KEYS.kept_of(owner)) == {k.id.encode()}
    assert not await redis.exists(KEYS.kept_of(A))


async def test_what_is_cancelled_is_cancelled_once_and_ends_for_its_readers(wire: Wire) -> None:
    """Its owner may write nothing any more, and nobody adopts it."""
    s, k = resumable_store(wire), kept()
    await s.put(k)
    await s.note(k, 0, [batch(1)], ended=False)
    last: list[Event] = [Failed(k.id, 0, "cancelled", "")]
    assert [await s.cancel(k.id, last), await s.cancel(k.id, last)] == [True, False]
    with pytest.raises(Lost):
        await s.note(k, 0, [batch(1), batch(2)], ended=False)
    assert await resumable_store(wire, B).adopt(R, A) is None
    assert (await s.written(k.id))[1:] == [last]
    assert not await s.cancel(RequestId("unknown"), last)


async def test_an_answer_is_adopted_behind_what_is_out_of_it(redis: "Redis", wire: Wire) -> None:
    """Its attempts have numbers above those of the old owner."""
    k = kept()
    await resumable_store(wire).put(k)
    await resumable_store(wire).note(k, 0, [batch(1), batch(2)], ended=False)
    async with Going(resumable_store(wire, B), [3], [4]) as b:
        await until(lambda: ended(redis))
    assert await tokens(resumable_store(wire)) == [1, 2, 3, 4]
    (adoption,) = b.begun
    assert (adoption.attempt, adoption.out[0].tokens, adoption.came) == (ATTEMPTS, [1, 2], k.created)


async def test_the_live_owner_of_an_answer_keeps_it(redis: "Redis", wire: Wire) -> None:
    """Nobody adopts what somebody lives for, nor what has just been asked for."""
    k = kept()
    await redis.set(KEYS.api(A), "1")
    await resumable_store(wire).put(k)
    async with Going(resumable_store(wire, B), [3]) as b:
        await asyncio.sleep(0.6)
    assert b.begun == []


async def test_what_was_put_and_never_begun_is_begun(redis: "Redis", wire: Wire) -> None:
    """Redis took it and its reply was lost: the client asks again, and is told to wait for it."""
    k = kept()
    await redis.set(KEYS.api(A), "1")
    await resumable_store(wire).put(k, join="k")
    async with Going(resumable_store(wire), [1]) as a:
        await until(lambda: ended(redis))
    assert (len(a.begun), await tokens(resumable_store(wire))) == (1, [1])


async def test_a_kept_request_is_adopted_at_the_second_look_only(redis: "Redis", wire: Wire) -> None:
    """Its owner may be about to begin it at the first."""
    k = kept()
    await redis.set(KEYS.api(A), "1")
    going = Going(resumable_store(wire), [1])
    await resumable_store(wire).put(k)
    await going.answer_owner._adopt(time.monotonic())
    assert not going.answer_owner._running
    await going.answer_owner._adopt(time.monotonic())
    assert going.answer_owner._running
    await until(lambda: ended(redis))


async def test_an_adoption_that_redis_interrupts_is_completed(redis: "Redis", wire: Wire) -> None:
    """Some were adopted, and the log of none could be read: none of them is forgotten."""
    names = [RequestId(f"chatcmpl-{i}") for i in range(3)]
    for name in names:
        await resumable_store(wire).put(kept(request=name))
    await redis.set(KEYS.api(B), "1")

    class Interrupted(Wire):
        count = 0

        async def execute(self, commands: Sequence[Command]) -> list[Any]:
            replies = await super().execute(commands)
            if any(c[0] == "XRANGE" or (c[0] == "EVAL" and "HINCRBY" in c[1]) for c in commands):
                self.count += 1
                if self.count in (2, 3):
                    raise StoreDown("lost")
            return replies

    flaky_wire = Interrupted(redis)
    async with Going(resumable_store(flaky_wire, B), [1]):
        for name in names:
            await until(lambda name=name: ended(redis, name))
    assert flaky_wire.count > 3, "it was interrupted, and went on"
    flaky_wire.close()


async def test_a_running_answer_is_not_begun_twice(redis: "Redis", wire: Wire) -> None:
    """The owner looks after what it owns, and disturbs no answer."""
    k = kept()
    await redis.set(KEYS.api(A), "1")
    await resumable_store(wire).put(k)
    slow = FakeCall()
    slow.deltas = AsyncMock(side_effect=asyncio.Event().wait)  # type: ignore[method-assign]
    async with Going(resumable_store(wire), [9]) as a:
        a.answer_owner.start(k, slow)  # type: ignore[arg-type]
        await asyncio.sleep(0.5)
        assert a.begun == []
        await resumable_store(wire).cancel(k.id, [Failed(k.id, 0, "cancelled", "")])
        await asyncio.sleep(0.2)
        assert not a.answer_owner._running, "what somebody else cancelled is given up"


@pytest.mark.parametrize("writes", [False, True])
async def test_an_answer_that_its_first_owner_adopts_back_is_made(redis: "Redis", wire: Wire, writes: bool) -> None:
    """Redis was slow: another replica took this one for dead, and then this one that. Nobody made the answer any more:
    who owned it had given up its first run of it, and forgot with that that it is the owner again.

    `writes`: its first run notices at its next event, and not at a look.
    """
    k, s, go = kept(), resumable_store(wire), asyncio.Event()
    await redis.set(KEYS.api(A), "1")
    await s.put(k)

    class Late(FakeCall):
        async def deltas(self) -> list[tuple[int, Delta]]:
            await go.wait()
            return await super().deltas()

    async with Going(s, [1], [2]) as a:
        a.answer_owner.start(k, Late([1]))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert await resumable_store(wire, B).adopt(k.id, A) is not None
        await a.answer_owner._take(k.id, B)
        if writes:
            go.set()
        await until(lambda: ended(redis))
        assert (len(a.begun), await tokens(s)) == (1, [1, 2])
    assert await s.owned_by(A) == set()


async def test_a_redis_that_lost_the_end_of_an_answer_is_told_it_again(redis: "Redis", wire: Wire) -> None:
    """Its last second, on its way to the disk: what readers had of it is not made anew."""
    s, k, was_read = resumable_store(wire), kept(), asyncio.Event()
    names, before = (KEYS.kept(R), KEYS.log(R), KEYS.kept_of(A)), dict[str, bytes]()

    class Call(FakeCall):
        async def deltas(self) -> list[tuple[int, Delta]]:
            if len(self.rest) == 2:
                before.update({name: await redis.dump(name) for name in names})
            if not self.rest:
                await was_read.wait()
            return await super().deltas()

    await redis.set(KEYS.api(A), "1")
    await s.put(k)
    async with Going(s, [8], [9]) as a:
        a.answer_owner.start(k, Call([1], [2], [3], [4]))
        async with reading(s, a.answer_owner, k) as reader:
            had = list[int]()
            while len(had) < 4:
                had += [token for _, delta in await reader.deltas() for token in delta.tokens]
            was_read.set()
            await until(lambda: ended(redis))
            for name, raw in before.items():
                await redis.restore(name, 0, raw, replace=True)
            assert await asyncio.wait_for(reader.deltas(), 5) == []
        await until(lambda: ended(redis))
        assert (had, await tokens(s), a.begun) == ([1, 2, 3, 4], [1, 2, 3, 4], [])
        assert not await redis.exists(KEYS.kept_of(A))


async def test_an_owner_that_has_answers_anew_is_not_forgotten(redis: "Redis", wire: Wire) -> None:
    """The owner was taken for dead, and put one while its others were adopted.

    If it died now, nobody would look.
    """
    s, other = resumable_store(wire), resumable_store(wire, B)
    await s.put(kept())
    await other.forget_owner(A)
    assert await other.dead_owners() == [A]
    assert await other.adopt(R, A) is not None
    await other.forget_owner(A)
    assert await other.dead_owners() == []


async def test_a_failed_answer_is_read_to_its_last_token_and_then_fails(redis: "Redis", wire: Wire) -> None:
    """All of it may be in the log already."""
    k, s = kept(), resumable_store(wire)
    await redis.set(KEYS.api(A), "1")
    await s.put(k)
    async with Going(s) as a:
        a.answer_owner.start(k, FakeCall([1], [2], error=Saturated()))  # type: ignore[arg-type]
        await until(lambda: ended(redis))
        r = reading(s, a.answer_owner, k)
        assert [d.tokens for _, d in await r.deltas()] == [[1], [2]]
        with pytest.raises(Saturated):
            await r.deltas()


async def test_an_answer_that_cannot_be_understood_ends_and_the_others_are_adopted(redis: "Redis", wire: Wire) -> None:
    """Such an answer held up all others for ever: each look ended at it."""
    odd, lost_answer, good = kept(request="chatcmpl-0"), kept(request="chatcmpl-2"), kept()
    for k in (odd, lost_answer, good):
        await resumable_store(wire, B).put(k)
    await redis.hset(KEYS.kept(odd.id), "record", b"of another version")
    await redis.hdel(KEYS.kept(lost_answer.id), "record")
    await redis.set(KEYS.api(A), "1")
    s = resumable_store(wire)
    async with Going(s, [1]):
        await until(lambda: ended(redis))
        await until(lambda: ended(redis, odd.id))
        assert await tokens(s) == [1]
        (last,) = (await s.written(odd.id))[-1]
        assert isinstance(last, Failed)
        assert await s.owned_by(A) | await s.owned_by(B) == set()


async def test_a_reader_is_not_kept_waiting_for_what_nobody_writes(wire: Wire) -> None:
    """The deadline is over, and whoever owned it had time to say so."""
    k = kept(deadline_s=-60)
    answer_owner = AnswerOwner(resumable_store(wire), AsyncMock(), adopt_s=0.2)
    with pytest.raises(DeadlineOver):
        await asyncio.wait_for(reading(resumable_store(wire), answer_owner, k).deltas(), 2)


async def test_a_reader_looks_when_its_own_answer_goes_on_and_not_at_each_ones(redis: "Redis", wire: Wire) -> None:
    """A hundred readers of a hundred answers would look ten thousand times a token."""
    await redis.set(KEYS.api(A), "1")
    s = resumable_store(wire)
    mine, other = kept(), kept(request="chatcmpl-2")
    for k in (mine, other):
        await s.put(k)
    still = FakeCall()
    still.deltas = AsyncMock(side_effect=asyncio.Event().wait)  # type: ignore[method-assign]
    async with Going(s) as a:
        a.answer_owner.start(mine, still)  # type: ignore[arg-type]
        s.page = AsyncMock(return_value=[])  # type: ignore[method-assign]
        async with beside(reading(s, a.answer_owner, mine).deltas()):
            await asyncio.sleep(0.02)
            a.answer_owner.start(other, FakeCall(*[[i] for i in range(300)]))  # type: ignore[arg-type]
            await until(lambda: ended(redis, other.id))
            looks = s.page.await_count
    assert 0 < looks < 40


LARGE = b"x" * 10_000  # of a body
ROOM = 50_000  # bytes: four of them, with what stands around each


def numbered(number: int, key: str = "key", deadline_s: float = 60) -> KeptRequest:
    return replace(kept(deadline_s, f"chatcmpl-{number}"), body=LARGE, key=key)


async def fill(s: ResumableStore, key: str = "key") -> list[KeptRequest]:
    """The requests that are kept when there is room for no other one."""
    put = []
    with pytest.raises(KeptFull):
        for number in range(20):
            await s.put(k := numbered(number, key))
            put.append(k)
    return put


async def counted(redis: "Redis") -> dict[str, int]:
    return {name.decode(): int(n) for name, n in (await redis.hgetall(KEYS.kept_account()[0])).items()}


async def test_what_expires_and_is_not_understood_keeps_nothing_from_being_kept(redis: "Redis", wire: Wire) -> None:
    """Each request whose answer is to be kept looks at what has expired, and waited for a minute."""
    await redis.zadd(KEYS.kept_account()[1], {"of another version": 1})
    await resumable_store(wire, A, ROOM).put(numbered(1))
    assert await redis.zscore(KEYS.kept_account()[1], "of another version") is None


async def test_one_api_keys_kept_answers_are_bounded_and_others_go_on(redis: "Redis", wire: Wire) -> None:
    """The kept answers of all keys together are bounded too."""
    assert len(await fill(resumable_store(wire, A, ROOM))) == 4
    with pytest.raises(KeptFull, match="this API key") as error:
        await resumable_store(wire, B, ROOM).put(numbered(20))
    assert 80 <= (error.value.retry_after_s or 0) <= 90, "until the first expires"
    assert not await redis.exists(KEYS.kept(RequestId("chatcmpl-20")))
    await resumable_store(wire, A, ROOM).put(other := numbered(21, "other"))
    assert (await resumable_store(wire).find(other.id, "other")).kept == other
    with pytest.raises(KeptFull, match="all clients"):
        await resumable_store(wire, A, ROOM, 5 * 10_000).put(numbered(22, "other"))


async def test_known_kept_requests_are_accepted_without_room(redis: "Redis", wire: Wire) -> None:
    """Only new ones are refused; a client whose connection broke sends the same one again."""
    s = resumable_store(wire, A, ROOM)
    await s.put(first := numbered(30), join="k")
    await fill(s)
    before = await counted(redis)
    assert await s.put(numbered(31), join="k") == first.id
    assert await s.put(first, join="k") == first.id
    assert await counted(redis) == before
    await redis.delete(KEYS.kept(first.id))
    await s.note(first, 0, [batch(1)], ended=False)
    assert await tokens(s, first.id) == [1]


async def test_an_answer_counts_with_what_has_come_of_it(redis: "Redis", wire: Wire) -> None:
    """The number of times that it was sent does not matter."""
    s, k = resumable_store(wire, A, ROOM), kept()
    await s.put(k)
    batches: list[bytes] = []
    for number in range(40):
        batches.append(encode([Delta(R, 0, "x" * 1000, [number])]))
        await s.note(k, 0, batches, ended=False)
        await s.note(k, 0, batches, ended=False)
    with pytest.raises(KeptFull):
        await s.put(numbered(2))
    await s.note(k, 0, [*batches, END], ended=True)
    assert len(await tokens(s)) == 40
    sizes = await counted(redis)
    assert sizes["all"] == sizes["key:key"] == sizes[f"id:{R}"]
    assert 40_000 < sizes["all"] < 50_000


LONG = [[number] * 40 for number in range(150)]  # batches: three times the room


@pytest.mark.parametrize("most", [(ROOM,), (10 * ROOM, ROOM)], ids=["of its key", "of all"])
async def test_an_answer_without_room_goes_on_for_who_reads_it_and_is_kept_no_more(
    redis: "Redis", wire: Wire, most: tuple[int, ...]
) -> None:
    """One answer of many choices with logprobs would take a thousand times what its client may keep."""
    await redis.set(KEYS.api(A), "1")
    s, k = resumable_store(wire, A, *most), replace(kept(), chat=StoredChat("m"))
    await s.put(k)
    async with Going(s) as g:
        g.answer_owner.start(k, FakeCall(*LONG))
        here, second_reader = (reading(s, g.answer_owner, k) for _ in range(2))
        own_tokens: list[int] = []
        while deltas := await here.deltas():
            own_tokens += [t for _, delta in deltas for t in delta.tokens]
            assert (await counted(redis))["all"] <= ROOM
        assert own_tokens == [t for batch in LONG for t in batch]
        assert len(await second_reader.whole()) == sum(map(len, LONG)), "at their own pace"
    assert (await counted(redis)).get("all", 0) < 2000
    assert await redis.hget(KEYS.kept(R), "chat") is None
    assert await redis.zcard(KEYS.chats_of(k.key)) == 0
    assert 0 < await redis.pttl(KEYS.log(R)) <= 60_000
    assert not await s.owned_by(A), "nobody adopts it"
    elsewhere = AnswerOwner(resumable_store(wire, B), AsyncMock(), adopt_s=0.2)
    with pytest.raises(KeptFull, match="could not be kept"):
        await reading(s, elsewhere, k).deltas()


async def test_a_reader_at_another_replica_of_an_answer_without_room_is_told_so(redis: "Redis", wire: Wire) -> None:
    """The error comes after what it has read."""
    s, k = resumable_store(wire, A, ROOM), kept()
    await s.put(k)
    batches = [batch(1)]
    await s.note(k, 0, batches, ended=False)
    replay = reading(s, AnswerOwner(resumable_store(wire, B), AsyncMock(), adopt_s=0.2), k)
    assert len(await replay.deltas()) == 1
    batches.append(encode([Delta(R, 0, "x" * ROOM, [2])]))
    for _ in range(2):
        with pytest.raises(Unkept):
            await s.note(k, 0, batches, ended=False)
    with pytest.raises(KeptFull):
        await asyncio.wait_for(replay.deltas(), 2)


async def test_an_answer_that_nobody_reads_ends_when_there_is_no_room(redis: "Redis", wire: Wire) -> None:
    """Nobody could get it."""
    await redis.set(KEYS.api(A), "1")
    s, k = resumable_store(wire, A, ROOM), replace(kept(), background=True)
    await s.put(k)
    call = FakeCall(*LONG)
    async with Going(s) as g:
        g.answer_owner.start(k, call)
        with pytest.raises(KeptFull):
            await reading(s, g.answer_owner, k).whole()
        assert len(call.rest) > 50


@pytest.mark.parametrize("how", ["deleted", "expired", "expired by itself"])
async def test_what_is_deleted_or_expires_makes_room(redis: "Redis", wire: Wire, how: str) -> None:
    """Redis' own expiry tells nobody."""
    s = resumable_store(wire, A, ROOM, keep_s=0.2)
    requests = await fill(s)
    for k in requests:
        if how == "deleted":
            await s.cancel(k.id, [Failed(k.id, 0, "cancelled", "")])
            await s.delete(k.id)
            await s.delete(k.id)
        elif how == "expired":
            await s.cancel(k.id, [Failed(k.id, 0, "cancelled", "")])
        else:
            await s.note(k, 0, [END], ended=True)
    if how == "deleted":
        assert await counted(redis) == {}
    await until(lambda: gone(redis, requests))
    await s.put(numbered(50))
    sizes = await counted(redis)
    assert sizes.keys() == {"all", "key:key", "id:chatcmpl-50"}
    assert set(sizes.values()) == {sizes["all"]}
    assert await redis.zcard(KEYS.kept_account()[1]) == 1


@pytest.mark.parametrize(("batches", "error", "short"), [
    ([], Saturated(), True), ([], EngineFailed(), False), ([[1]], Saturated(), False),
])  # fmt: skip
async def test_what_was_only_refused_takes_room_for_a_minute(
    redis: "Redis", wire: Wire, batches: list[list[int]], error: Exception, short: bool
) -> None:
    """An overload would fill the room of an hour otherwise."""
    s = resumable_store(wire, keep_s=3600)
    k = kept()
    await s.put(k)
    async with Going(s) as g:
        g.answer_owner.start(k, FakeCall(*batches, error=error))
        await until(lambda: ended(redis))
    assert (await redis.pttl(KEYS.kept(R)) <= 60_000) == short


async def gone(redis: "Redis", answers: list[KeptRequest]) -> bool:
    """Some milliseconds longer than Redis keeps them, as it counts whole ones."""
    is_gone = not await redis.exists(*(KEYS.kept(k.id) for k in answers))
    await asyncio.sleep(0.01)
    return is_gone


def test_the_log_has_all_of_a_delta() -> None:
    """An answer that is adopted goes on with the weights that began it: a lost field is lost for good."""
    everything: dict[str, Any] = {
        "text": "t", "tokens": [1], "finish": "stop", "stop": "s",
        "logprobs": [], "prompt_logprobs": [], "weights": "v1",
    }  # fmt: skip
    delta = Delta(RequestId("other"), 7, index=1, **everything)
    assert {"request", "attempt", "index", *everything} == set(Delta.__struct_fields__)
    assert as_kept(R, 3, delta) == Delta(R, 0, index=3, **everything)
