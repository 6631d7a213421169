"""Placing, retrying and giving up, against a real Redis and workers that are only leases."""

import asyncio
import time

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.api.answer import Answer
from app.api.dispatch import Dispatcher
from app.api.fleet import FleetReader
from app.api.inbox import Inbox
from app.api.watch import Watch
from app.errors import NoWorker, Saturated
from app.ids import ApiId, PoolId, RequestId, WorkerId, run_id, worker_queue
from app.keys import PRIORITY_STEPS, Keys
from app.messages import Delta, Failed, Job, Sampling, decode_job
from app.routing.fleet import Limits
from app.store import Wire
from app.tasks.message import read_task_message
from tests.integration.conftest import POOL, register

KEYS, API = Keys("test"), ApiId("api1")


def dispatcher(wire: Wire, max_queued: int = 100) -> Dispatcher:
    return Dispatcher(wire, KEYS, API, FleetReader(wire, KEYS), Limits(max_queued, 3))


def job(request: str = "r1", deadline_s: float = 60, priority: int = 0) -> Job:
    nowhere = PoolId(""), WorkerId("")
    return Job(
        RequestId(request), 0, API, *nowhere, [1, 2, 3], Sampling(max_tokens=5), time.time() + deadline_s, priority
    )


async def queued(redis: "Redis", worker: WorkerId) -> list[tuple[RequestId, int]]:
    """(request, attempt) in the worker's own queue, the most urgent first."""
    out = []
    for step in PRIORITY_STEPS:
        raw = await redis.lrange(KEYS.queue(worker_queue(POOL, worker), step), 0, -1)
        out += [read_task_message(m) for m in reversed(raw)]
    return out


async def attempts(redis: "Redis", worker: WorkerId) -> list[tuple[RequestId, int]]:
    """What is queued for a worker as soon as anything is."""
    for _ in range(400):
        if found := await queued(redis, worker):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"nothing was queued for {worker}")


async def test_requests_are_shared_evenly_by_what_is_reserved(redis: "Redis", wire: Wire) -> None:
    """Reservations count at once, before any worker has reported a thing."""
    workers = [await register(redis, KEYS, f"w{i}") for i in range(4)]
    d = dispatcher(wire)
    await asyncio.gather(*(d.send(job(f"r{i}"), (POOL,), Answer()) for i in range(40)))
    assert [len(await queued(redis, w)) for w in workers] == [10, 10, 10, 10]


async def test_the_record_is_the_job_and_names_its_worker(redis: "Redis", wire: Wire) -> None:
    """Any worker of the pool can take the request from its record."""
    worker = await register(redis, KEYS, "w1")
    await dispatcher(wire).send(job(), (POOL,), Answer())
    record = decode_job(await redis.get(KEYS.request(run_id(RequestId("r1"), 0))))
    assert (record.worker, record.pool, record.prompt, record.reply_to) == (worker, POOL, [1, 2, 3], API)
    assert 60_000 < await redis.pttl(KEYS.request(run_id(RequestId("r1"), 0))) <= 90_000


async def test_urgent_requests_go_to_the_front(redis: "Redis", wire: Wire) -> None:
    """Lower is sooner, as in vLLM."""
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    for name, priority in (("later", 5), ("usual", 0), ("urgent", -1)):
        await d.send(job(name, priority=priority), (POOL,), Answer())
    assert [r for r, _ in await queued(redis, worker)] == ["urgent", "usual", "later"]


async def test_no_worker_and_full_workers_are_told_apart(redis: "Redis", wire: Wire) -> None:
    """503 means start a worker, 429 means come back."""
    d = dispatcher(wire, max_queued=0)
    with pytest.raises(NoWorker):
        await d.send(job("r0"), (POOL,), Answer())
    await register(redis, KEYS, "w1", max_running=1)
    await d.send(job("r1"), (POOL,), Answer())
    with pytest.raises(Saturated) as full:
        await d.send(job("r2"), (POOL,), Answer())
    assert full.value.retry_after_s == 3
    await d.cancel([RequestId("r0"), RequestId("r2")])
    assert list(d.flights) == ["r1"]
    assert await queued(redis, WorkerId("w1")) == [(RequestId("r1"), 0)]


async def test_a_cancel_drops_the_record_and_tells_the_worker(redis: "Redis", wire: Wire) -> None:
    """Whether it waits in the queue or runs, nobody computes it any further."""
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    await d.send(job(), (POOL,), Answer())
    await d.cancel([RequestId("r1")])
    assert await redis.exists(KEYS.request(run_id(RequestId("r1"), 0))) == 0
    assert await redis.lrange(KEYS.cancel(worker), 0, -1) == [b"r1.0"]
    assert not d.flights


async def test_a_returned_request_is_placed_again_and_old_events_are_ignored(redis: "Redis", wire: Wire) -> None:
    """A draining worker gives back what it never began."""
    one = await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire), Answer()
    await d.send(job(), (POOL,), answer)
    await redis.delete(KEYS.worker(one))
    two = await register(redis, KEYS, "w2")
    d.deliver(Failed(RequestId("r1"), 0, "returned", ""))
    assert await attempts(redis, two) == [(RequestId("r1"), 1)]
    d.deliver(Delta(RequestId("r1"), 0, "stale", [1]))
    d.deliver(Delta(RequestId("r1"), 1, "fresh", [2]))
    (event,) = await answer.take()
    assert isinstance(event, Delta)
    assert event.text == "fresh"


@pytest.mark.parametrize("began", [False, True])
async def test_a_dead_workers_request_is_retried_unless_part_of_it_is_out(
    redis: "Redis", wire: Wire, began: bool
) -> None:
    """Its lease is gone: within seconds the request runs elsewhere, or ends with one clear error."""
    one = await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire), Answer()
    watch = Watch(wire, KEYS, d, Inbox(wire, KEYS, API, d.deliver, d.worker_lost), [POOL])
    await d.send(job(), (POOL,), answer)
    if began:
        d.deliver(Delta(RequestId("r1"), 0, "a", [1]))
        await answer.take()
    await redis.delete(KEYS.worker(one))
    two = await register(redis, KEYS, "w2")
    task = asyncio.create_task(watch.run())
    if began:
        (event,) = await asyncio.wait_for(answer.take(), 5)
        assert isinstance(event, Failed)
        assert event.code == "worker_lost"
    else:
        assert await attempts(redis, two) == [(RequestId("r1"), 1)]
    task.cancel()
    assert await redis.smembers(KEYS.pool(POOL)) == {two.encode()}
    for key in (KEYS.reservations(one), KEYS.load(one), KEYS.queue(worker_queue(POOL, one), 3)):
        assert 0 < await redis.ttl(key) <= 600


async def test_a_request_that_nobody_answers_ends_at_its_deadline(redis: "Redis", wire: Wire) -> None:
    """The worker may hang with its lease alive; the client does not."""
    await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire), Answer()
    watch = Watch(wire, KEYS, d, Inbox(wire, KEYS, API, d.deliver, d.worker_lost), [POOL])
    await d.send(job(deadline_s=0.1), (POOL,), answer)
    task = asyncio.create_task(watch.run())
    (event,) = await asyncio.wait_for(answer.take(), 6)
    task.cancel()
    assert isinstance(event, Failed)
    assert event.code == "deadline_exceeded"


async def test_a_retry_may_land_on_the_same_worker(redis: "Redis", wire: Wire) -> None:
    """It was thought dead, or gave the request back: its second attempt is another run, with its own account."""
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    await d.send(job(), (POOL,), Answer())
    d.lost(d.flights[RequestId("r1")])
    for _ in range(100):
        if len(await queued(redis, worker)) == 2:
            break
        await asyncio.sleep(0.02)
    assert await queued(redis, worker) == [(RequestId("r1"), 0), (RequestId("r1"), 1)]
    assert set(await redis.hgetall(KEYS.reservations(worker))) == {b"r1.0", b"r1.1"}
    assert await redis.lrange(KEYS.cancel(worker), 0, -1) == [b"r1.0"]
    assert await redis.exists(KEYS.request(run_id(RequestId("r1"), 0))) == 0


async def test_a_request_that_ends_while_it_waits_for_a_round_is_waited_for_no_longer(wire: Wire) -> None:
    """Its deadline passed while Redis was slow."""
    d, answer = dispatcher(wire), Answer()
    sending = asyncio.create_task(d.send(job(), (POOL,), answer))
    await asyncio.sleep(0)
    d.fail(d.flights[RequestId("r1")], Saturated())
    await asyncio.wait_for(sending, 5)
    (event,) = await answer.take()
    assert isinstance(event, Failed)
    if d._rounds is not None:
        await d._rounds


async def test_one_request_that_cannot_be_placed_is_no_trouble_of_the_others(redis: "Redis", wire: Wire) -> None:
    """What msgpack can't carry fails alone."""
    await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    bad = replace(job("bad"), sampling=Sampling(max_tokens=5, logit_bias={2**70: 1.0}))
    outcomes = await asyncio.gather(
        *(d.send(j, (POOL,), Answer()) for j in (job("r1"), bad, job("r2"))), return_exceptions=True
    )
    assert [type(o).__name__ for o in outcomes] == ["NoneType", "XylemError", "NoneType"]
