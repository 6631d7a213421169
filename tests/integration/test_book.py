"""Batches in a real Redis: what is counted is counted once, whoever has it, whoever dies, whatever is sent twice."""

import time
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from app.batch.batch_store import _LOST_MS, _SILENT_MS, Book, Load, Ticket
from app.batch.file_store import FileShelf
from app.batch.records import Order, Problem, Result, Status, packed
from app.errors import BatchNotFound
from app.ids import ApiId, BatchId, FileId, new_batch_id
from app.keys import Keys
from app.store import Wire

KEYS = Keys("test")
A, B = ApiId("a"), ApiId("b")


@pytest.fixture
def book(wire: Wire) -> Book:
    return Book(wire, KEYS, keep_s=60)


@pytest_asyncio.fixture
async def running(redis: "Redis", book: Book) -> AsyncIterator[BatchId]:
    """A batch in progress, of three parts; the workers A and B live."""
    for worker in (A, B):
        await redis.set(KEYS.api(worker), "1")
    made = await book.create(order())
    await book.lay_out(made.order.id, 3)
    await book.turn(made.order.id, ["validating"], {"status": "in_progress", "total": 6, "parts": 3})
    yield made.order.id


def order(key: str = "", created: int | None = None, expires: int | None = None) -> Order:
    now = created or int(time.time())
    expires = expires or now + 86_400
    return Order(new_batch_id(), key, "/v1/completions", FileId("file-1"), "24h", now, expires)


def result(number: int, *, failed: bool = False) -> Result:
    problem = Problem("x", "y") if failed else None
    return Result(number, f"id-{number}", 200, problem=problem, prompt=10, cached=4, completion=3)


async def counts(book: Book, batch: BatchId) -> tuple[int, ...]:
    """Lines, and tokens."""
    b = await book.find(batch, None)
    return b.completed, b.failed, b.prompt, b.cached, b.completion


async def later(redis: "Redis", batch: BatchId, ticket: Ticket) -> None:
    """As if it had been sent long ago, and nobody has taken it."""
    since = round(time.time() * 1000) - _LOST_MS - 1000
    await redis.hset(KEYS.taken(batch), str(ticket.part), f"{ticket.number}||{since}")


async def test_a_batch_is_found_by_who_made_it(book: Book) -> None:
    """And by batch workers, who have no key."""
    made = await book.create(order("alice"))
    assert await book.find(made.order.id, "alice") == made
    assert await book.find(made.order.id, None) == made
    for key in ("bob", ""):
        with pytest.raises(BatchNotFound):
            await book.find(made.order.id, key)


async def test_pages_hold_each_batch_once_the_newest_first(redis: "Redis", book: Book) -> None:
    """Also of those that were made within one second; what is forgotten is in none of them."""
    now = int(time.time())
    made = [(await book.create(order("alice", now))).order.id for _ in range(5)][::-1]
    await book.create(order("bob"))
    first, more = await book.owned("alice", "", 2)
    assert ([b.order.id for b in first], more) == (made[:2], True)
    second, more = await book.owned("alice", made[1], 3)
    assert ([b.order.id for b in second], more) == (made[2:], False)
    assert await book.owned("alice", made[-1], 3) == ([], False)
    assert await book.owned("alice", "batch_unknown", 3) == ([], False)
    await redis.delete(KEYS.batch(made[1]))
    assert [b.order.id for b in (await book.owned("alice", "", 9))[0]] == [made[0], *made[2:]]
    assert await redis.zcard(KEYS.batches_of("alice")) == 4


async def test_live_batches_are_those_of_which_something_is_to_be_done_the_most_urgent_first(book: Book) -> None:
    """One that has ended is to be cleaned up, and its webhook told."""
    now = int(time.time())
    late, soon, ended = [(await book.create(order(expires=now + s))).order.id for s in (900, 300, 600)]
    await book.turn(ended, ["validating"], {"status": "failed"})
    assert [b.order.id for b in await book.live()] == [soon, ended, late]
    await book.leave(ended)
    assert [b.order.id for b in await book.live()] == [soon, late]


async def test_a_batch_turns_only_from_where_it_was_expected_to_be(redis: "Redis", book: Book) -> None:
    """So that of two who do the same, or the same one twice, the second does nothing. Ended, it is kept for a while."""
    batch = (await book.create(order())).order.id
    assert await book.turn(batch, ["validating"], {"status": "in_progress", "total": 2})
    assert not await book.turn(batch, ["validating"], {"status": "in_progress", "total": 9})
    assert (await book.find(batch, None)).total == 2
    assert await redis.pttl(KEYS.batch(batch)) == -1
    assert await book.turn(batch, ["in_progress", "cancelling"], {"status": "completed", "completed_at": 1})
    assert 50_000 < await redis.pttl(KEYS.batch(batch)) <= 60_000
    assert not await book.turn(BatchId("batch_unknown"), ["validating"], {"status": "failed"})
    assert not await redis.exists(KEYS.batch(BatchId("batch_unknown")))


async def test_one_worker_has_the_hand_and_the_next_when_it_has_died(redis: "Redis", book: Book) -> None:
    """Who had it before can't turn the batch any more."""
    batch = (await book.create(order())).order.id
    await redis.set(KEYS.api(A), "1")
    assert await book.grasp(batch, "validating", A)
    assert await book.grasp(batch, "validating", A)
    assert not await book.grasp(batch, "validating", B)
    assert not await book.grasp(batch, "finalizing", A)
    assert await book.loads([batch]) == [Load(0, 0, A)]
    await redis.delete(KEYS.api(A))
    assert await book.loads([batch]) == [Load(0, 0, None)]
    assert await book.grasp(batch, "validating", B)
    assert not await book.turn(batch, ["validating"], {"status": "in_progress"}, A)
    assert await book.turn(batch, ["validating"], {"status": "in_progress"}, B)
    assert await redis.hget(KEYS.batch(batch), "hand") is None  # what comes next is for anybody


async def test_parts_are_sent_in_their_order_and_each_once(book: Book, running: BatchId) -> None:
    first = await book.feed({running: 2})
    assert [t.part for t in first] == [0, 1]
    assert [t.part for t in await book.feed({running: 2})] == [2]
    assert await book.feed({running: 2}) == []
    assert await book.loads([running]) == [Load(0, 3, None)]


async def test_a_part_belongs_to_who_takes_it_first(book: Book, running: BatchId) -> None:
    """However often its message comes."""
    (ticket,) = await book.feed({running: 1})
    assert await book.claim(ticket, A)
    assert await book.claim(ticket, A)
    assert not await book.claim(ticket, B)


async def test_a_line_counts_once(book: Book, running: BatchId) -> None:
    """Sent twice, or computed twice; failed lines and tokens count as well. The first result is the line's."""
    (ticket,) = await book.feed({running: 1})
    await book.claim(ticket, A)
    for _ in range(2):
        assert await book.note(ticket, A, result(1))
    assert await book.note(ticket, A, result(2, failed=True))
    assert await book.note(ticket, A, result(2))
    assert await counts(book, running) == (1, 1, 20, 8, 6)
    assert await book.totals() == {"completed": 1, "failed": 1, "prompt": 20, "cached": 8, "completion": 6}
    assert {r.number: r.problem is None for r in await book.done(running, 0)} == {1: True, 2: False}
    assert (await book.find(running, None)).left == 4
    assert await book.loads([running]) == [Load(2, 1, None, answered=2)]


async def test_a_lost_message_is_sent_again_and_the_old_ticket_is_worth_nothing(
    redis: "Redis", book: Book, running: BatchId
) -> None:
    (old,) = await book.feed({running: 1})
    assert [t.part for t in await book.feed({running: 1})] == [1]  # it may still come
    await later(redis, running, old)
    (new,) = await book.feed({running: 0})
    assert (new.part, new.number > old.number) == (old.part, True)
    assert not await book.claim(old, A)
    assert await book.claim(new, B)
    assert not await book.note(old, A, result(1))
    await book.close(old, A, done=True)
    assert await book.note(new, B, result(1))
    assert await counts(book, running) == (1, 0, 10, 4, 3)


async def test_the_part_of_a_dead_worker_is_sent_again_and_its_lines_are_not_counted_again(
    redis: "Redis", book: Book, running: BatchId
) -> None:
    (old,) = await book.feed({running: 1})
    await book.claim(old, A)
    await book.note(old, A, result(1))
    assert await book.feed({running: 0}) == []
    await redis.delete(KEYS.api(A))
    (new,) = await book.feed({running: 0})
    assert await book.claim(new, B)
    assert [r.number for r in await book.done(running, 0)] == [1]
    assert not await book.note(old, A, result(2))  # it was not dead after all
    assert await book.note(new, B, result(1))
    assert await counts(book, running) == (1, 0, 10, 4, 3)


async def test_a_part_that_is_done_is_forgotten_and_one_that_is_not_comes_back(
    redis: "Redis", book: Book, running: BatchId
) -> None:
    first, second = await book.feed({running: 2})
    for ticket in (first, second):
        await book.claim(ticket, A)
        await book.note(ticket, A, result(ticket.part))
    await book.close(first, A, done=True)
    await book.close(second, A, done=False)
    assert await book.done(running, first.part) == []
    assert len(await book.done(running, second.part)) == 1  # who has it next need not compute that again
    assert await book.loads([running]) == [Load(2, 0, None)]
    assert [t.part for t in await book.feed({running: 9})] == [1, 2]
    assert not await book.note(first, A, result(9))
    await book.forget_parts(running, 3)
    assert await redis.exists(*(KEYS.done(running, part) for part in range(3)), KEYS.taken(running)) == 0


@pytest.mark.parametrize("stopped", ["paused", "cancelling"])
async def test_of_a_batch_that_has_stopped_nothing_is_begun(book: Book, running: BatchId, stopped: str) -> None:
    """What nobody has taken goes back; what is being computed may still be noted."""
    taken, sent = await book.feed({running: 2})
    await book.claim(taken, A)
    await (book.pause(running, paused=True) if stopped == "paused" else book.cancel(running))
    assert not await book.claim(sent, A)
    assert await book.feed({running: 5}) == []
    assert await book.loads([running]) == [Load(2, 1, None)]
    assert await book.note(taken, A, result(1))
    await book.close(taken, A, done=False)
    if stopped == "paused":
        await book.pause(running, paused=False)
        assert [t.part for t in await book.feed({running: 5})] == [0, 1, 2]


@pytest.mark.parametrize("status", ["finalizing", "completed", "failed", "expired", "cancelled"])
async def test_cancel_and_pause_change_nothing_of_what_is_being_finished(
    book: Book, running: BatchId, status: Status
) -> None:
    await book.turn(running, ["in_progress"], {"status": status})
    before = await book.find(running, None)
    await book.cancel(running)
    await book.pause(running, paused=True)
    assert await book.find(running, None) == before


async def test_a_cancelled_batch_says_when_and_how_it_will_end(book: Book, running: BatchId) -> None:
    await book.cancel(running)
    batch = await book.find(running, None)
    assert (batch.status, batch.ending) == ("cancelling", "cancelled")
    assert batch.cancelling_at is not None


async def test_a_new_layout_replaces_the_one_that_was_begun(book: Book) -> None:
    """Whoever validated before may have died in the middle of it."""
    batch = (await book.create(order())).order.id
    assert await book.lay_out(batch, 12_000)
    assert await book.lay_out(batch, 11_000)
    await book.turn(batch, ["validating"], {"status": "in_progress", "total": 6, "parts": 11_000})
    assert await book.loads([batch]) == [Load(11_000, 0, None)]
    tickets = await book.feed({batch: 11_001})
    assert [t.part for t in tickets] == list(range(11_000))


async def test_who_stood_still_lays_out_nothing_once_more(redis: "Redis", book: Book) -> None:
    """Parts that are done would be computed again."""
    batch = (await book.create(order())).order.id
    await redis.set(KEYS.api(B), "1")
    assert await book.grasp(batch, "validating", A)
    assert await book.grasp(batch, "validating", B)
    assert not await book.lay_out(batch, 2, A)
    assert await book.lay_out(batch, 2, B)
    assert await book.turn(batch, ["validating"], {"status": "in_progress"}, B)
    for ticket in await book.feed({batch: 2}):
        await book.claim(ticket, B)
        await book.close(ticket, B, done=True)
    assert not await book.lay_out(batch, 2, A)
    assert await book.loads([batch]) == [Load(0, 0, None)]


async def test_a_batch_is_complete_when_no_part_is_left(book: Book, running: BatchId) -> None:
    """Whatever was read a moment ago."""
    tickets = await book.feed({running: 3})
    for ticket in tickets:
        await book.claim(ticket, A)
        await book.close(ticket, A, done=ticket.part != 1)
    assert not await book.complete(running, {"status": "finalizing"})  # in `todo`
    (ticket,) = await book.feed({running: 1})
    assert not await book.complete(running, {"status": "finalizing"})  # in `taken`
    await book.claim(ticket, A)
    await book.close(ticket, A, done=True)
    assert await book.complete(running, {"status": "finalizing"})
    assert not await book.complete(running, {"status": "finalizing"})


async def test_a_worker_that_lives_and_does_not_say_that_it_has_a_part_has_let_go_of_it(
    redis: "Redis", book: Book, running: BatchId
) -> None:
    """Redis gave it the part and could not say so, or has forgotten that it is done."""
    said, silent = await book.feed({running: 2})
    since = round(time.time() * 1000) - _SILENT_MS - 1000
    for ticket in (said, silent):
        await book.claim(ticket, A)
        await redis.hset(KEYS.taken(running), str(ticket.part), f"{ticket.number}|{A}|{since}")
    assert await book.claim(said, A)
    (new,) = await book.feed({running: 0})
    assert new.part == silent.part
    assert await book.claim(new, B)


async def test_a_worker_that_lives_and_does_not_say_that_it_has_the_hand_has_let_go_of_it(
    redis: "Redis", book: Book
) -> None:
    batch = (await book.create(order())).order.id
    await redis.set(KEYS.api(A), "1")
    await book.grasp(batch, "validating", A)
    await redis.hset(KEYS.batch(batch), "hand_at", round(time.time() * 1000) - _SILENT_MS - 1000)
    assert await book.loads([batch]) == [Load(0, 0, None)]
    assert await book.grasp(batch, "validating", B)
    await book.let_go(batch, A)
    assert await redis.hget(KEYS.batch(batch), "hand") == B.encode()  # it is B's to let go
    await book.let_go(batch, B)
    assert await redis.hget(KEYS.batch(batch), "hand") is None


async def test_a_batch_that_is_written_down_twice_goes_on(redis: "Redis", book: Book, running: BatchId) -> None:
    """A lost connection doesn't tell what got through, and by the second time it may be far."""
    before = await book.find(running, None)
    await book.create(before.order)
    assert await book.find(running, None) == before


async def test_what_cannot_be_read_any_more_is_in_nobodys_way(redis: "Redis", book: Book, running: BatchId) -> None:
    """Nor is what is gone. A key's list forgets what nothing can be known of."""
    unreadable = msgspec.structs.replace(order(), metadata={"n": 7})
    await book.create(unreadable)
    gone = (await book.create(order())).order.id
    await redis.delete(KEYS.batch(gone))
    await redis.zadd(KEYS.batches_of("alice"), {"batch_old": 1})
    await book.create(order("alice"))
    assert running in [batch.order.id for batch in await book.live()]
    assert await redis.zscore(KEYS.batches(), gone) is None
    assert await redis.zscore(KEYS.batches(), unreadable.id) is not None
    assert await redis.zscore(KEYS.batches_of("alice"), "batch_old") is None


async def test_one_worker_leads_and_the_next_when_it_is_silent(redis: "Redis", book: Book) -> None:
    assert await book.lead(A, 1)
    assert await book.lead(A, 1)
    assert not await book.lead(B, 1)
    await redis.delete(KEYS.batch_leader())
    assert await book.lead(B, 1)


async def test_what_batch_workers_can_have_is_what_those_that_live_take(redis: "Redis", book: Book) -> None:
    """The dead are forgotten; who ends takes none."""
    assert await book.capacity() == 0
    for worker, parts in ((A, 64), (B, 32)):
        await redis.set(KEYS.api(worker), "1")
        await book.lead(worker, parts)
    assert await book.capacity() == 96
    await book.lead(A, 0)
    assert await book.capacity() == 32
    await redis.delete(KEYS.api(B))
    assert await book.capacity() == 0
    assert await redis.hkeys(KEYS.batch_workers()) == [A.encode()]


async def test_problems_are_read_as_they_were_written(book: Book, running: BatchId) -> None:
    problems = [Problem("a", "ä", 3, "p"), Problem("b", "")]
    await book.turn(running, ["in_progress"], {"status": "failed", "problems": packed(problems)})
    assert (await book.find(running, None)).problems == problems


async def test_files_whose_record_is_gone_do_not_stand_in_the_way_of_those_that_expire(
    redis: "Redis", wire: Wire
) -> None:
    """Nor in their owner's list."""
    shelf = FileShelf(wire, KEYS)
    await redis.zadd(KEYS.files_expiring(), {f"file-{i}": 1 for i in range(150)})
    await redis.zadd(KEYS.files_of("alice"), {f"file-{i}": 1 for i in range(150)})
    while await redis.zcard(KEYS.files_expiring()):
        assert await shelf.expired(time.time()) == []
    assert await shelf.owned("alice", "", 10, newest_first=True) == ([], False)
