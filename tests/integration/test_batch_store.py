"""Batches in a real Redis: what is counted is counted once, whoever has it, whoever dies, whatever is sent twice."""

import time
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
import structlog
from redis.asyncio import Redis

from app.batch.batch_store import _LOST_MS, _SILENT_MS, BatchLoad, BatchStore, PartClaim
from app.batch.file_store import FileStore
from app.batch.handling_names import of_batch, of_part
from app.batch.records import BatchOrder, Problem, Result, Status, packed
from app.errors import BatchNotFound, RequestError, TooManyBatches
from app.ids import ApiId, BatchId, FileId, KeyId, new_batch_id
from app.keys import Keys
from app.store import Wire

pytestmark = pytest.mark.both_servers

KEYS = Keys("test")
A, B = ApiId("a"), ApiId("b")


@pytest.fixture
def batch_store(wire: Wire) -> BatchStore:
    return BatchStore(wire, KEYS, keep_s=60)


@pytest_asyncio.fixture
async def running(redis: "Redis", batch_store: BatchStore) -> AsyncIterator[BatchId]:
    """A batch in progress, of three parts; the workers A and B live."""
    for worker in (A, B):
        await redis.set(KEYS.api(worker), "1")
    batch = await batch_store.create(order())
    await batch_store.set_parts(batch.order.id, 3)
    await batch_store.set_status(batch.order.id, ["validating"], {"status": "in_progress", "total": 6, "parts": 3})
    yield batch.order.id


def order(key: str = "", created: int | None = None, expires: int | None = None) -> BatchOrder:
    now = created or int(time.time())
    expires = expires or now + 86_400
    return BatchOrder(new_batch_id(), key, "/v1/completions", FileId("file-1"), "24h", now, expires)


def result(number: int, *, failed: bool = False) -> Result:
    problem = Problem("x", "y") if failed else None
    return Result(number, f"id-{number}", 200, problem=problem, prompt=10, cached=4, completion=3)


async def counts(batch_store: BatchStore, batch: BatchId) -> tuple[int, ...]:
    """Lines, and tokens."""
    b = await batch_store.find(batch, None)
    return b.completed, b.failed, b.prompt, b.cached, b.completion


async def later(redis: "Redis", batch: BatchId, ticket: PartClaim) -> None:
    """Writes the part's record as if it had been sent long ago, and nobody had taken it."""
    since = round(time.time() * 1000) - _LOST_MS - 1000
    await redis.hset(KEYS.taken(batch), str(ticket.part), f"{ticket.number}||{since}")


async def test_unfinished_batches_are_bounded_of_each_key_and_in_all(redis: "Redis", wire: Wire) -> None:
    """A batch takes up to 12 kB of Redis for a month, and time of the leader while it isn't finished."""
    few = BatchStore(wire, KEYS, 60, most_of_key=3, most=5)
    batches = [await few.create(order("alice")) for _ in range(3)]
    with pytest.raises(TooManyBatches, match="3 of your batches") as refusal:
        await few.create(order("alice"))
    assert refusal.value.retry_after_s == 60
    assert len(await few.all_of(KeyId("alice"))) == 3
    for _ in range(2):
        await few.create(order("bob"))
    with pytest.raises(TooManyBatches, match="are 5 batches"):
        await few.create(order("carol"))
    ended_batch = batches[1].order.id
    await few.set_status(ended_batch, ["validating"], {"status": "failed", "failed_at": 1, "cleaned": 1})
    await few.leave(ended_batch)
    await few.create(order("alice"))


async def test_the_newest_batches_of_a_key_are_kept_and_none_that_is_unfinished_is_removed(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended batches are kept for a month, or until there are so many newer ones."""
    monkeypatch.setattr("app.batch.batch_store._KEPT_OF_KEY", 4)
    few = BatchStore(wire, KEYS, 60, most_of_key=2)
    first = (await few.create(order("alice"))).order.id
    later = []
    for _ in range(8):
        later.append(ended_batch := (await few.create(order("alice"))).order.id)
        await few.set_status(ended_batch, ["validating"], {"status": "failed", "failed_at": 1, "cleaned": 1})
        await few.leave(ended_batch)
    remaining_ids = [id_ for id_, _ in await few.all_of(KeyId("alice"))]
    assert remaining_ids[0] == first
    assert remaining_ids[1:] == later[-len(remaining_ids) + 1 :]
    assert len(remaining_ids) <= 4
    assert len(await redis.keys("*batch:batch_*")) == len(remaining_ids)


async def test_a_batch_is_found_by_who_made_it(batch_store: BatchStore) -> None:
    """Batch workers, which have no key, find it too."""
    batch = await batch_store.create(order("alice"))
    assert await batch_store.find(batch.order.id, "alice") == batch
    assert await batch_store.find(batch.order.id, None) == batch
    for key in ("bob", ""):
        with pytest.raises(BatchNotFound):
            await batch_store.find(batch.order.id, key)


async def test_pages_hold_each_batch_once_the_newest_first(redis: "Redis", batch_store: BatchStore) -> None:
    """Batches that were made within one second are there once too; none that is forgotten is on any page."""
    now = int(time.time())
    ids = [(await batch_store.create(order("alice", now))).order.id for _ in range(5)][::-1]
    await batch_store.create(order("bob"))
    first, more = await batch_store.owned("alice", "", 2)
    assert ([b.order.id for b in first], more) == (ids[:2], True)
    second, more = await batch_store.owned("alice", ids[1], 3)
    assert ([b.order.id for b in second], more) == (ids[2:], False)
    assert await batch_store.owned("alice", ids[-1], 3) == ([], False)
    with pytest.raises(RequestError, match="'after'"):
        await batch_store.owned("alice", "batch_unknown", 3)
    await redis.delete(KEYS.batch(ids[1]))
    assert [b.order.id for b in (await batch_store.owned("alice", "", 9))[0]] == [ids[0], *ids[2:]]
    assert await redis.zcard(KEYS.batches_of("alice")) == 4


async def test_live_batches_are_those_of_which_something_is_to_be_done_the_most_urgent_first(
    batch_store: BatchStore,
) -> None:
    """One that has ended is to be cleaned up, and its webhook told."""
    now = int(time.time())
    late, soon, ended_batch = [(await batch_store.create(order(expires=now + s))).order.id for s in (900, 300, 600)]
    await batch_store.set_status(ended_batch, ["validating"], {"status": "failed"})
    assert [b.order.id for b in await batch_store.live()] == [soon, ended_batch, late]
    await batch_store.leave(ended_batch)
    assert [b.order.id for b in await batch_store.live()] == [soon, late]


async def test_a_batch_turns_only_from_where_it_was_expected_to_be(redis: "Redis", batch_store: BatchStore) -> None:
    """The second of two workers that do the same, or of two tries, thus does nothing.

    An ended batch is kept for a while.
    """
    batch = (await batch_store.create(order())).order.id
    assert await batch_store.set_status(batch, ["validating"], {"status": "in_progress", "total": 2})
    assert not await batch_store.set_status(batch, ["validating"], {"status": "in_progress", "total": 9})
    assert (await batch_store.find(batch, None)).total == 2
    assert await redis.pttl(KEYS.batch(batch)) == -1
    assert await batch_store.set_status(
        batch, ["in_progress", "cancelling"], {"status": "completed", "completed_at": 1}
    )
    assert 50_000 < await redis.pttl(KEYS.batch(batch)) <= 60_000
    assert not await batch_store.set_status(BatchId("batch_unknown"), ["validating"], {"status": "failed"})
    assert not await redis.exists(KEYS.batch(BatchId("batch_unknown")))


async def test_a_batch_is_locked_by_one_worker_until_that_dies(redis: "Redis", batch_store: BatchStore) -> None:
    """The former holder can't change the batch any more."""
    batch = (await batch_store.create(order())).order.id
    await redis.set(KEYS.api(A), "1")
    assert await batch_store.lock(batch, "validating", A)
    assert await batch_store.lock(batch, "validating", A)
    assert not await batch_store.lock(batch, "validating", B)
    assert not await batch_store.lock(batch, "finalizing", A)
    assert await batch_store.loads([batch]) == [BatchLoad(0, 0, A)]
    await redis.delete(KEYS.api(A))
    assert await batch_store.loads([batch]) == [BatchLoad(0, 0, None)]
    assert await batch_store.lock(batch, "validating", B)
    assert not await batch_store.set_status(batch, ["validating"], {"status": "in_progress"}, A)
    assert await batch_store.set_status(batch, ["validating"], {"status": "in_progress"}, B)
    assert await redis.hget(KEYS.batch(batch), "holder") is None  # what comes next is for anybody


async def test_parts_are_sent_in_their_order_and_each_once(batch_store: BatchStore, running: BatchId) -> None:
    first = await batch_store.hand_out({running: 2})
    assert [t.part for t in first] == [0, 1]
    assert [t.part for t in await batch_store.hand_out({running: 2})] == [2]
    assert await batch_store.hand_out({running: 2}) == []
    assert await batch_store.loads([running]) == [BatchLoad(0, 3, None)]


async def test_a_part_belongs_to_who_takes_it_first(batch_store: BatchStore, running: BatchId) -> None:
    """The number of times that its message comes does not matter."""
    (ticket,) = await batch_store.hand_out({running: 1})
    assert await batch_store.claim_part(ticket, A)
    assert await batch_store.claim_part(ticket, A)
    assert not await batch_store.claim_part(ticket, B)


async def test_a_line_counts_once(batch_store: BatchStore, running: BatchId) -> None:
    """Sent twice, or computed twice; failed lines and tokens count as well. The first result is the line's."""
    (ticket,) = await batch_store.hand_out({running: 1})
    await batch_store.claim_part(ticket, A)
    for _ in range(2):
        assert await batch_store.add_result(ticket, A, result(1))
    assert await batch_store.add_result(ticket, A, result(2, failed=True))
    assert await batch_store.add_result(ticket, A, result(2))
    assert await counts(batch_store, running) == (1, 1, 20, 8, 6)
    assert await batch_store.totals() == {"completed": 1, "failed": 1, "prompt": 20, "cached": 8, "completion": 6}
    assert {r.number: r.problem is None for r in await batch_store.done(running, 0)} == {1: True, 2: False}
    assert (await batch_store.find(running, None)).left == 4
    assert await batch_store.loads([running]) == [BatchLoad(2, 1, None, answered=2)]


async def test_a_lost_message_is_sent_again_and_the_old_ticket_is_worth_nothing(
    redis: "Redis", batch_store: BatchStore, running: BatchId
) -> None:
    (old,) = await batch_store.hand_out({running: 1})
    assert [t.part for t in await batch_store.hand_out({running: 1})] == [1]  # it may still come
    await later(redis, running, old)
    (new,) = await batch_store.hand_out({running: 0})
    assert (new.part, new.number > old.number) == (old.part, True)
    assert not await batch_store.claim_part(old, A)
    assert await batch_store.claim_part(new, B)
    assert not await batch_store.add_result(old, A, result(1))
    await batch_store.return_part(old, A, done=True)
    assert await batch_store.add_result(new, B, result(1))
    assert await counts(batch_store, running) == (1, 0, 10, 4, 3)


async def test_the_part_of_a_dead_worker_is_sent_again_and_its_lines_are_not_counted_again(
    redis: "Redis", batch_store: BatchStore, running: BatchId
) -> None:
    (old,) = await batch_store.hand_out({running: 1})
    await batch_store.claim_part(old, A)
    await batch_store.add_result(old, A, result(1))
    assert await batch_store.hand_out({running: 0}) == []
    await redis.delete(KEYS.api(A))
    (new,) = await batch_store.hand_out({running: 0})
    assert await batch_store.claim_part(new, B)
    assert [r.number for r in await batch_store.done(running, 0)] == [1]
    assert not await batch_store.add_result(old, A, result(2))  # it was not dead after all
    assert await batch_store.add_result(new, B, result(1))
    assert await counts(batch_store, running) == (1, 0, 10, 4, 3)


async def test_a_part_that_is_done_is_forgotten_and_one_that_is_not_comes_back(
    redis: "Redis", batch_store: BatchStore, running: BatchId
) -> None:
    first, second = await batch_store.hand_out({running: 2})
    for ticket in (first, second):
        await batch_store.claim_part(ticket, A)
        await batch_store.add_result(ticket, A, result(ticket.part))
    await batch_store.return_part(first, A, done=True)
    await batch_store.return_part(second, A, done=False)
    assert await batch_store.done(running, first.part) == []
    assert len(await batch_store.done(running, second.part)) == 1  # who has it next need not compute that again
    assert await batch_store.loads([running]) == [BatchLoad(2, 0, None)]
    assert [t.part for t in await batch_store.hand_out({running: 9})] == [1, 2]
    assert not await batch_store.add_result(first, A, result(9))
    died_with = [KEYS.handling(what) for what in (of_part(running, 2), of_batch(running, "finalizing"))]
    await redis.mset(dict.fromkeys(died_with, 3))
    await batch_store.forget_parts(running, 3)
    names = *(KEYS.done(running, part) for part in range(3)), KEYS.taken(running), *died_with
    assert await redis.exists(*names) == 0


@pytest.mark.parametrize("stopped", ["paused", "cancelling"])
async def test_of_a_batch_that_has_stopped_nothing_is_begun(
    batch_store: BatchStore, running: BatchId, stopped: str
) -> None:
    """Parts that nobody has taken go back; those that are being computed may still be noted."""
    claimed_part, sent_part = await batch_store.hand_out({running: 2})
    await batch_store.claim_part(claimed_part, A)
    await (batch_store.pause(running, paused=True) if stopped == "paused" else batch_store.cancel(running))
    assert not await batch_store.claim_part(sent_part, A)
    assert await batch_store.hand_out({running: 5}) == []
    assert await batch_store.loads([running]) == [BatchLoad(2, 1, None)]
    assert await batch_store.add_result(claimed_part, A, result(1))
    await batch_store.return_part(claimed_part, A, done=False)
    if stopped == "paused":
        await batch_store.pause(running, paused=False)
        assert [t.part for t in await batch_store.hand_out({running: 5})] == [0, 1, 2]


@pytest.mark.parametrize("status", ["finalizing", "completed", "failed", "expired", "cancelled"])
async def test_cancel_and_pause_change_nothing_of_what_is_being_finished(
    batch_store: BatchStore, running: BatchId, status: Status
) -> None:
    await batch_store.set_status(running, ["in_progress"], {"status": status})
    before = await batch_store.find(running, None)
    await batch_store.cancel(running)
    await batch_store.pause(running, paused=True)
    assert await batch_store.find(running, None) == before


async def test_a_cancelled_batch_says_when_and_how_it_will_end(batch_store: BatchStore, running: BatchId) -> None:
    await batch_store.cancel(running)
    batch = await batch_store.find(running, None)
    assert (batch.status, batch.ending) == ("cancelling", "cancelled")
    assert batch.cancelling_at is not None


async def test_a_new_layout_replaces_the_one_that_was_begun(batch_store: BatchStore) -> None:
    """The worker that validated before may have died in the middle of it."""
    batch = (await batch_store.create(order())).order.id
    assert await batch_store.set_parts(batch, 12_000)
    assert await batch_store.set_parts(batch, 11_000)
    await batch_store.set_status(batch, ["validating"], {"status": "in_progress", "total": 6, "parts": 11_000})
    assert await batch_store.loads([batch]) == [BatchLoad(11_000, 0, None)]
    tickets = await batch_store.hand_out({batch: 11_001})
    assert [t.part for t in tickets] == list(range(11_000))


async def test_a_worker_that_lost_the_lock_sets_no_parts(redis: "Redis", batch_store: BatchStore) -> None:
    """Parts that are done would be computed again."""
    batch = (await batch_store.create(order())).order.id
    await redis.set(KEYS.api(B), "1")
    assert await batch_store.lock(batch, "validating", A)
    assert await batch_store.lock(batch, "validating", B)
    assert not await batch_store.set_parts(batch, 2, A)
    assert await batch_store.set_parts(batch, 2, B)
    assert await batch_store.set_status(batch, ["validating"], {"status": "in_progress"}, B)
    for ticket in await batch_store.hand_out({batch: 2}):
        await batch_store.claim_part(ticket, B)
        await batch_store.return_part(ticket, B, done=True)
    assert not await batch_store.set_parts(batch, 2, A)
    assert await batch_store.loads([batch]) == [BatchLoad(0, 0, None)]


async def test_lines_of_a_batch_are_not_counted_if_others_were_counted_since_they_were_looked_at(
    redis: "Redis", batch_store: BatchStore
) -> None:
    """No lines are counted for a worker that has lost the lock either.

    A count that somebody wrote and is no number begins anew.
    """
    first, second = [(await batch_store.create(order())).order.id for _ in range(2)]
    for worker, batch in ((A, first), (B, second)):
        await redis.set(KEYS.api(worker), "1")
        assert await batch_store.lock(batch, "validating", worker)
    earlier_counts = await batch_store.counts()
    assert await batch_store.count_lines(second, 7, earlier_counts, A)
    assert (await batch_store.find(second, None)).left == 0
    assert await batch_store.count_lines(first, 5, earlier_counts, A)
    assert not await batch_store.count_lines(second, 7, earlier_counts, B)
    assert [(await batch_store.find(batch, None)).left for batch in (first, second)] == [5, 0]
    await redis.set(KEYS.batch_counts(), "many")
    assert await batch_store.count_lines(second, 7, await batch_store.counts(), B)
    assert (await batch_store.find(second, None)).left == 7
    assert await batch_store.counts() == "1"


async def test_a_batch_is_complete_when_no_part_is_left(batch_store: BatchStore, running: BatchId) -> None:
    """The counts that were read a moment ago don't matter."""
    tickets = await batch_store.hand_out({running: 3})
    for ticket in tickets:
        await batch_store.claim_part(ticket, A)
        await batch_store.return_part(ticket, A, done=ticket.part != 1)
    assert not await batch_store.complete(running, {"status": "finalizing"})  # in `todo`
    (ticket,) = await batch_store.hand_out({running: 1})
    assert not await batch_store.complete(running, {"status": "finalizing"})  # in `taken`
    await batch_store.claim_part(ticket, A)
    await batch_store.return_part(ticket, A, done=True)
    assert await batch_store.complete(running, {"status": "finalizing"})
    assert not await batch_store.complete(running, {"status": "finalizing"})


async def test_a_part_that_its_live_worker_does_not_report_is_handed_out_again(
    redis: "Redis", batch_store: BatchStore, running: BatchId
) -> None:
    """The worker never heard that it has the part, or Redis has forgotten that it is done."""
    reported_part, silent = await batch_store.hand_out({running: 2})
    since = round(time.time() * 1000) - _SILENT_MS - 1000
    for ticket in (reported_part, silent):
        await batch_store.claim_part(ticket, A)
        await redis.hset(KEYS.taken(running), str(ticket.part), f"{ticket.number}|{A}|{since}")
    assert await batch_store.claim_part(reported_part, A)
    (new,) = await batch_store.hand_out({running: 0})
    assert new.part == silent.part
    assert await batch_store.claim_part(new, B)


async def test_a_lock_that_its_live_worker_does_not_report_is_released(redis: "Redis", batch_store: BatchStore) -> None:
    batch = (await batch_store.create(order())).order.id
    await redis.set(KEYS.api(A), "1")
    await batch_store.lock(batch, "validating", A)
    await redis.hset(KEYS.batch(batch), "holder_at", round(time.time() * 1000) - _SILENT_MS - 1000)
    assert await batch_store.loads([batch]) == [BatchLoad(0, 0, None)]
    assert await batch_store.lock(batch, "validating", B)
    await batch_store.unlock(batch, A)
    assert await redis.hget(KEYS.batch(batch), "holder") == B.encode()  # it is B's to let go
    await batch_store.unlock(batch, B)
    assert await redis.hget(KEYS.batch(batch), "holder") is None


async def test_a_batch_that_is_written_down_twice_goes_on(
    redis: "Redis", batch_store: BatchStore, running: BatchId
) -> None:
    """A lost connection doesn't tell what got through, and by the second time it may be far."""
    before = await batch_store.find(running, None)
    await batch_store.create(before.order)
    assert await batch_store.find(running, None) == before


async def test_unreadable_and_missing_batches_hide_no_others(
    redis: "Redis", batch_store: BatchStore, running: BatchId
) -> None:
    """A key's list forgets batches that are gone."""
    unreadable = msgspec.structs.replace(order(), metadata={"n": 7})
    await batch_store.create(unreadable)
    missing_batch = (await batch_store.create(order())).order.id
    await redis.delete(KEYS.batch(missing_batch))
    await redis.zadd(KEYS.batches_of("alice"), {"batch_old": 1})
    await batch_store.create(order("alice"))
    assert running in [batch.order.id for batch in await batch_store.live()]
    assert await redis.zscore(KEYS.batches(), missing_batch) is None
    assert await redis.zscore(KEYS.batches(), unreadable.id) is not None
    assert await redis.zscore(KEYS.batches_of("alice"), "batch_old") is None


async def test_one_worker_leads_and_the_next_when_it_is_silent(redis: "Redis", batch_store: BatchStore) -> None:
    assert await batch_store.lead(A, 1)
    assert await batch_store.lead(A, 1)
    assert not await batch_store.lead(B, 1)
    await redis.delete(KEYS.batch_leader())
    assert await batch_store.lead(B, 1)


async def test_the_capacity_is_the_sum_of_the_live_batch_workers(redis: "Redis", batch_store: BatchStore) -> None:
    """The dead are forgotten; one that ends takes none."""
    assert await batch_store.capacity() == 0
    for worker, parts in ((A, 64), (B, 32)):
        await redis.set(KEYS.api(worker), "1")
        await batch_store.lead(worker, parts)
    assert await batch_store.capacity() == 96
    await batch_store.lead(A, 0)
    assert await batch_store.capacity() == 32
    await redis.delete(KEYS.api(B))
    assert await batch_store.capacity() == 0
    assert await redis.hkeys(KEYS.batch_workers()) == [A.encode()]


async def test_what_is_no_number_among_batch_workers_and_totals_is_left_out_and_logged_once(
    redis: "Redis", batch_store: BatchStore, running: BatchId
) -> None:
    """The leader could send no part of any batch, and /metrics had none of a deployment."""
    for worker in (A, B):
        await redis.set(KEYS.api(worker), "1")
        await batch_store.lead(worker, 32, "127.0.0.1:1")
    await redis.hset(KEYS.batch_workers(), mapping={A: "many", b"\xff": "3"})  # type: ignore[misc]
    await redis.hset(KEYS.batch_ports(), mapping={A: b"\xff:1", b"\xff": "x"})  # type: ignore[misc]
    await redis.hset(KEYS.batch_totals(), mapping={"completed": "1.5", b"\xff": "x", "failed": 7})  # type: ignore[misc]
    (ticket,) = await batch_store.hand_out({running: 1})
    await batch_store.claim_part(ticket, A)
    assert await batch_store.add_result(ticket, A, result(1))
    with structlog.testing.capture_logs() as log_lines:
        for _ in range(2):
            assert await batch_store.capacity() == 32
            assert await batch_store.ports() == {A: "\ufffd:1", B: "127.0.0.1:1"}
            totals = await batch_store.totals()
            assert totals.pop("failed") == 7
            assert totals.keys() == {"prompt", "cached", "completion"}
    assert [line["event"] for line in log_lines] == ["number_not_understood"] * 2
    assert (await batch_store.find(running, None)).completed == 1


async def test_what_is_no_part_among_those_that_are_taken_stops_no_batch(
    redis: "Redis", batch_store: BatchStore, running: BatchId
) -> None:
    """The leader could send no part of any batch. A part that nobody can be said to have is sent again."""
    (ticket,) = await batch_store.hand_out({running: 1})
    await redis.hset(KEYS.taken(running), mapping={str(ticket.part): "x", "y": "1|a|1"})
    await redis.hset(KEYS.batch(running), mapping={"holder": "a", "holder_at": "now"})
    assert (await batch_store.loads([running]))[0].holder is None
    assert [again.part for again in await batch_store.hand_out({running: 0})] == [ticket.part]
    assert (await batch_store.loads([running]))[0].taken == 1


async def test_problems_are_read_as_they_were_written(batch_store: BatchStore, running: BatchId) -> None:
    problems = [Problem("a", "ä", 3, "p"), Problem("b", "")]
    await batch_store.set_status(running, ["in_progress"], {"status": "failed", "problems": packed(problems)})
    assert (await batch_store.find(running, None)).problems == problems


async def test_files_whose_record_is_gone_do_not_stand_in_the_way_of_those_that_expire(
    redis: "Redis", wire: Wire
) -> None:
    """Their owner's list is not held up either."""
    file_store = FileStore(wire, KEYS)
    await redis.zadd(KEYS.files_expiring(), {f"file-{i}": 1 for i in range(150)})
    await redis.zadd(KEYS.files_of("alice"), {f"file-{i}": 1 for i in range(150)})
    while await redis.zcard(KEYS.files_expiring()):
        assert await file_store.expired(time.time()) == []
    assert await file_store.owned("alice", "", 10, newest_first=True) == ([], False)


async def test_a_batch_that_is_not_understood_keeps_no_other_from_being_listed(
    redis: "Redis", batch_store: BatchStore
) -> None:
    """The batch stays for the version that knows it."""
    odd, readable_batch = [(await batch_store.create(order(key="alice"))).order for _ in range(2)]
    await redis.hset(KEYS.batch(odd.id), "order", b"\xc1")  # type: ignore[misc]
    page, more = await batch_store.owned("alice", "", 10)
    assert ([batch.order for batch in page], more) == ([readable_batch], False)
    assert await redis.zscore(KEYS.batches_of("alice"), odd.id) is not None
