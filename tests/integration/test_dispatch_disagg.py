"""A request on two workers, as the API replica that awaits it sees it: real Redis, workers that are only leases."""

import time

import pytest
from redis.asyncio import Redis

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.event_queue import EventQueue
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight, RoutingHints
from app.ids import ApiId, PoolId, RequestId, WorkerId, run_id, worker_queue
from app.keys import Keys
from app.messages.celery_message import read_task_message
from app.messages.commands import Cancel
from app.messages.events import Delta, Done, Event, Failed, FirstToken, PrefillDone
from app.messages.handoff import Handoff, KvHandle, Rendezvous
from app.messages.job import Job, PartialOutput, Sampling, Stage, Timing, decode_job
from app.messages.wire import encode
from app.pools.schema import Pool
from app.store import Wire
from tests.background import beside, until
from tests.integration.conftest import POOL, register, watch_of

KEYS, API, PREFILL, R = Keys("test"), ApiId("api1"), PoolId("prefill-pool-a"), RequestId("r1")
POOLS = {
    PREFILL: Pool.model_validate(
        {"model": "m", "engine": "mock", "role": "prefill", "disagg": {"remote_tokens": 100, "remote_wait_s": 9}}
    ),
    POOL: Pool(model="m", engine="mock", role="decode"),
}
LENT = KvHandle("an engine", 9e9, 1000, {"blocks": [1, 2]})
TIMING = Timing(WorkerId("p1"), 1.0, 2.0, 3.0)


async def prefiller(redis: "Redis", name: str = "p1", meets_at: str = "") -> WorkerId:
    return await register(redis, KEYS, name, pool=PREFILL, role="prefill", block_bytes=1, meets_at=meets_at)


async def decoder(redis: "Redis", name: str = "d1") -> WorkerId:
    return await register(redis, KEYS, name, role="decode", block_bytes=1)


def dispatcher(wire: Wire) -> Dispatcher:
    return Dispatcher(wire, KEYS, API, FleetReader(wire, KEYS, POOLS, 100), POOLS)


def inflight(n: int = 1) -> InFlight:
    job = Job(R, 0, API, list(range(1000)), Sampling(max_tokens=5, n=n), time.time() + 60)
    return InFlight(job, ((POOL,),), EventQueue(), RoutingHints(), ((PREFILL,),))


async def sent(wire: Wire) -> tuple[Dispatcher, InFlight]:
    d, f = dispatcher(wire), inflight()
    await d.send(f)
    return d, f


def first(attempt: int = 0) -> FirstToken:
    return FirstToken(R, attempt, Delta(R, attempt, "one", [1]), PartialOutput([1], 3))


async def queued(redis: "Redis", pool: PoolId, worker: WorkerId) -> list[tuple[Handoff | None, int]]:
    """(handoff, attempt) of each message to a worker."""
    raw = await redis.lrange(KEYS.queue(worker_queue(pool, worker), 3), 0, -1)
    return [(args[0], args[2]) for args in map(read_task_message, reversed(raw)) if args]


async def placed_again(redis: "Redis", worker: WorkerId) -> tuple[Handoff | None, int]:
    entries: list[tuple[Handoff | None, int]] = await until(lambda: queued(redis, POOL, worker))
    return entries[-1]


async def test_the_prefill_worker_gets_the_message_and_the_record_names_both(redis: "Redis", wire: Wire) -> None:
    one, two = await prefiller(redis), await decoder(redis)
    await dispatcher(wire).send(inflight())
    assert await queued(redis, PREFILL, one) == [(None, 0)]
    assert await queued(redis, POOL, two) == []
    job = decode_job(await redis.get(KEYS.request(run_id(R, 0))))
    assert job.stages == [Stage("prefill", PREFILL, one, 0), Stage("decode", POOL, two, 0)]


async def test_at_once_both_get_a_message_with_the_same_room(redis: "Redis", wire: Wire) -> None:
    one, two = await prefiller(redis, meets_at="10.0.0.7:4711"), await decoder(redis)
    await dispatcher(wire).send(inflight())
    ((prefill_room, _),), ((decode_room, _),) = await queued(redis, PREFILL, one), await queued(redis, POOL, two)
    assert isinstance(prefill_room, Rendezvous)
    assert prefill_room == decode_room
    assert (prefill_room.host, prefill_room.port) == ("10.0.0.7", 4711)


async def test_the_first_token_comes_first_whichever_worker_is_heard_first(redis: "Redis", wire: Wire) -> None:
    await prefiller(redis), await decoder(redis)
    d, f = await sent(wire)
    events: list[Event] = [Delta(R, 0, "two", [2]), Done(R, 0), first(), PrefillDone(R, 0, TIMING)]
    for event in events:
        d.deliver(event)
    assert [e.text if isinstance(e, Delta) else "end" for e in await f.answer.take()] == ["one", "two", "end"]
    assert not d.in_flight


@pytest.mark.parametrize("way", ["in sequence", "at once"])
async def test_the_worker_that_decodes_is_not_forgotten_when_the_end_of_the_prefill_is_heard_late(
    redis: "Redis", wire: Wire, way: str
) -> None:
    """Two workers' messages come in any order; at once, the prefill ends when the other has long begun."""
    one, two = await prefiller(redis, meets_at="" if way == "in sequence" else "10.0.0.7:4711"), await decoder(redis)
    d, f = await sent(wire)
    if way == "in sequence":
        d.deliver(first())
        d.deliver(Delta(R, 0, "two", [2]))
    d.deliver(PrefillDone(R, 0, TIMING))
    assert (f.attempt.workers, f.attempt.stage == "prefill") == ([(two, POOL)], False)
    assert d.worker_lost(one) == 0
    await redis.delete(KEYS.worker(two))
    three = await decoder(redis, "d2")
    assert d.worker_lost(two) == 1
    await until(lambda: f.job.worker == three)
    assert (f.job.worker, f.job.attempt) == (three, 1)


async def test_with_several_choices_the_decode_worker_makes_the_first_tokens(redis: "Redis", wire: Wire) -> None:
    await prefiller(redis), await decoder(redis)
    d, f = dispatcher(wire), inflight(n=2)
    await d.send(f)
    d.deliver(Delta(R, 0, "two", [2]))
    assert len(await f.answer.take()) == 1


async def test_a_handoff_that_comes_back_goes_to_another_worker_with_the_first_token(
    redis: "Redis", wire: Wire
) -> None:
    """The worker that was to decode went while the prompt was computed."""
    one, two = await prefiller(redis), await decoder(redis)
    d, f = await sent(wire)
    await redis.delete(KEYS.worker(two))
    three = await decoder(redis, "d2")
    d.deliver(first())
    d.deliver(PrefillDone(R, 0, TIMING, LENT))
    assert await placed_again(redis, three) == (LENT, 1)
    job = decode_job(await redis.get(KEYS.request(run_id(R, 1))))
    assert (job.begun, job.stage("prefill")) == ([PartialOutput([1], 3)], None)
    assert await queued(redis, PREFILL, one) == [(None, 0)], "the prompt is not computed again"
    d.deliver(Delta(R, 1, "two", [2]))
    assert [e.text for e in await f.answer.take() if isinstance(e, Delta)] == ["one", "two"]


@pytest.mark.parametrize("when", ["before", "after", "handed"])
async def test_a_request_is_retried_when_the_worker_that_holds_it_dies(redis: "Redis", wire: Wire, when: str) -> None:
    """The prefill worker holds it before the handoff, and the decode worker after it.

    The first token is not lost.
    """
    one, two = await prefiller(redis), await decoder(redis)
    d, f = await sent(wire)
    dead, other = (two, one) if when == "handed" else (one, two)
    if when != "before":
        d.deliver(first())
    if when == "handed":
        d.deliver(PrefillDone(R, 0, TIMING))
    assert d.worker_lost(other) == 0
    await redis.delete(KEYS.worker(one))
    three = await decoder(redis, "d2")
    if when == "handed":
        await redis.delete(KEYS.worker(two))
    async with beside(watch_of(wire, KEYS, d, POOLS).run()):
        await until(lambda: f.job.attempt == 1 and f.job.worker)
    assert f.job.worker in ({three} if when == "handed" else {two, three})
    assert (f.job.attempt, f.job.stage("prefill")) == (1, None)
    assert f.job.begun == ([] if when == "before" else [PartialOutput([1], 3)])
    assert dead not in dict(f.attempt.workers)


@pytest.mark.parametrize("code", ["engine_failed", "engine_dead", "handoff_failed"])
async def test_a_prefill_that_fails_is_a_prefill_elsewhere(redis: "Redis", wire: Wire, code: str) -> None:
    await prefiller(redis)
    two = await decoder(redis)
    d, _ = await sent(wire)
    d.deliver(Failed(R, 0, code, "it broke"))
    assert await placed_again(redis, two) == (None, 1)


async def test_a_request_that_the_prefill_engine_refuses_is_refused(redis: "Redis", wire: Wire) -> None:
    """Another engine of the kind would say the same."""
    await prefiller(redis), await decoder(redis)
    d, f = await sent(wire)
    d.deliver(Failed(R, 0, "invalid_value", "no"))
    assert [type(e) for e in await f.answer.take()] == [Failed]


async def test_a_cancel_reaches_both_workers(redis: "Redis", wire: Wire) -> None:
    one, two = await prefiller(redis), await decoder(redis)
    d = dispatcher(wire)
    await d.send(inflight())
    await d.cancel([R])
    for worker in (one, two):
        assert await redis.lrange(KEYS.commands(worker), 0, -1) == [encode(Cancel(run_id(R, 0)))]
    assert not await redis.exists(KEYS.request(run_id(R, 0)))


async def test_without_a_prefill_worker_the_decode_worker_does_it_all(redis: "Redis", wire: Wire) -> None:
    two = await decoder(redis)
    await dispatcher(wire).send(inflight())
    assert await queued(redis, POOL, two) == [(None, 0)]
