"""Placing, retrying and giving up, against a real Redis and workers that are only leases."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.event_queue import EventQueue
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.fleet.pool_fleet import PoolView
from app.dispatch.inflight import InFlight, RoutingHints
from app.errors import DeadlineOver, NoWorker, Saturated, StoreDown, XylemError
from app.ids import ApiId, PoolId, RequestId, WorkerId, place_id, run_id, worker_queue
from app.keys import PRIORITY_STEPS, Keys
from app.kv.blocks import chain, root
from app.messages.celery_message import read_task_message
from app.messages.commands import Cancel
from app.messages.events import Delta, Done, Failed
from app.messages.job import Job, PartialOutput, Sampling, Stage, decode_job
from app.messages.lease import Grid, Speeds
from app.messages.wire import encode
from app.pools.schema import Pool
from app.store import Wire
from app.store.scripts import FORGET_LOADS
from tests.background import beside, until
from tests.integration.conftest import POOL, register, watch_of
from tests.loads import set_load

KEYS, API, R1 = Keys("test"), ApiId("api1"), RequestId("r1")
POOLS = {POOL: Pool(model="m", engine="mock")}


def dispatcher(wire: Wire, max_queued: int = 100, **changes: Any) -> Dispatcher:
    """A dispatcher over one pool; `changes` are to its settings."""
    pools = {POOL: Pool.model_validate({"model": "m", "engine": "mock"} | changes)}
    return Dispatcher(wire, KEYS, API, FleetReader(wire, KEYS, pools, max_queued), pools, retry_after_s=3)


def inflight(job: Job, answer: EventQueue | None = None, **wishes: Any) -> InFlight:
    return InFlight(job, ((POOL,),), answer or EventQueue(), RoutingHints(**wishes))


def job(request: str = "r1", deadline_s: float = 60, priority: int = 0, *, aside: bool = False) -> Job:
    sampling, deadline = Sampling(max_tokens=5), time.time() + deadline_s
    return Job(RequestId(request), 0, API, [1, 2, 3], sampling, deadline, priority, aside=aside)


async def queued(redis: "Redis", worker: WorkerId) -> list[tuple[RequestId, int]]:
    """(request, attempt) in the worker's own queue, the most urgent first."""
    out = []
    for step in PRIORITY_STEPS:
        raw = await redis.lrange(KEYS.queue(worker_queue(POOL, worker), step), 0, -1)
        out += [args[1:] for m in reversed(raw) if (args := read_task_message(m))]
    return out


async def sent(d: Dispatcher, request: str = "r1", answer: EventQueue | None = None, **fields: Any) -> InFlight:
    """A request that is placed."""
    f = inflight(job(request, **fields), answer)
    await d.send(f)
    return f


async def failure(answer: EventQueue, within_s: float = 6) -> str:
    """The code of the next event, the only one, which is a failure."""
    (event,) = await asyncio.wait_for(answer.take(), within_s)
    assert isinstance(event, Failed)
    return event.code


async def test_requests_are_shared_evenly_by_what_is_reserved(redis: "Redis", wire: Wire) -> None:
    """Reservations count at once, before any worker has reported a thing."""
    workers = [await register(redis, KEYS, f"w{i}") for i in range(4)]
    d = dispatcher(wire)
    await asyncio.gather(*(d.send(inflight(job(f"r{i}"))) for i in range(40)))
    assert [len(await queued(redis, w)) for w in workers] == [10, 10, 10, 10]


async def test_the_record_is_the_job_and_names_its_worker(redis: "Redis", wire: Wire) -> None:
    """Any worker of the pool can take the request from its record."""
    worker = await register(redis, KEYS, "w1")
    await dispatcher(wire).send(inflight(job()))
    record = decode_job(await redis.get(KEYS.request(run_id(R1, 0))))
    assert (record.stages, record.prompt, record.reply_to) == ([Stage("decode", POOL, worker, 0)], [1, 2, 3], API)
    assert 60_000 < await redis.pttl(KEYS.request(run_id(R1, 0))) <= 90_000


async def test_urgent_requests_go_to_the_front(redis: "Redis", wire: Wire) -> None:
    """Lower is sooner, as in vLLM."""
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    for name, priority in (("later", 5), ("usual", 0), ("urgent", -1)):
        await sent(d, name, priority=priority)
    assert [r for r, _ in await queued(redis, worker)] == ["urgent", "usual", "later"]


async def test_no_worker_and_full_workers_are_told_apart(redis: "Redis", wire: Wire) -> None:
    """503 means start a worker, 429 means come back."""
    d = dispatcher(wire, max_queued=0, busy={"max_held": 0})
    with pytest.raises(NoWorker, match=r"No live worker serves the model 'm'\."):
        await sent(d, "r0")
    await register(redis, KEYS, "w1", max_running=1)
    await sent(d, "r1")
    with pytest.raises(Saturated) as full:
        await sent(d, "r2")
    assert full.value.retry_after_s == 3
    await d.cancel([RequestId("r0"), RequestId("r2")])
    assert list(d.in_flight) == ["r1"]
    assert await queued(redis, WorkerId("w1")) == [(R1, 0)]


async def test_a_cancel_drops_the_record_and_tells_the_worker(redis: "Redis", wire: Wire) -> None:
    """Whether it waits in the queue or runs, nobody computes it any further."""
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    await sent(d)
    await d.cancel([R1])
    assert await redis.exists(KEYS.request(run_id(R1, 0))) == 0
    assert await redis.lrange(KEYS.commands(worker), 0, -1) == [encode(Cancel(run_id(R1, 0)))]
    assert not d.in_flight


async def test_a_returned_request_is_placed_again_and_old_events_are_ignored(redis: "Redis", wire: Wire) -> None:
    """A draining worker gives back what it never began."""
    one = await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire), EventQueue()
    await sent(d, answer=answer)
    await redis.delete(KEYS.worker(one))
    two = await register(redis, KEYS, "w2")
    d.deliver(Failed(R1, 0, "returned", ""))
    assert await until(lambda: queued(redis, two)) == [(R1, 1)]
    d.deliver(Delta(R1, 0, "stale", [1]))
    d.deliver(Delta(R1, 1, "fresh", [2]))
    (event,) = await answer.take()
    assert isinstance(event, Delta)
    assert event.text == "fresh"


@pytest.mark.parametrize("began", [False, True])
async def test_a_dead_workers_request_goes_on_elsewhere(redis: "Redis", wire: Wire, began: bool) -> None:
    """Its lease is gone: another worker gets the prompt, and what is out already."""
    one = await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire), EventQueue()
    watch = watch_of(wire, KEYS, d, POOLS)
    await sent(d, answer=answer)
    if began:
        d.deliver(Delta(R1, 0, "a", [1]))
        await answer.take()
    await redis.delete(KEYS.worker(one))
    two = await register(redis, KEYS, "w2")
    async with beside(watch.run()):
        assert await until(lambda: queued(redis, two)) == [(R1, 1)]
        record = decode_job(await redis.get(KEYS.request(run_id(R1, 1))))
        assert record.begun == ([PartialOutput([1], 1)] if began else [])
    assert await redis.hkeys(KEYS.pool(POOL)) == [two.encode()]
    for key in (KEYS.reservations(one), KEYS.queue(worker_queue(POOL, one), 3)):
        assert 0 < await redis.ttl(key) <= 600


async def test_a_request_that_nobody_answers_ends_at_its_deadline(redis: "Redis", wire: Wire) -> None:
    """The worker may hang with its lease alive; the client does not. And if it lives, it is told to stop."""
    worker = await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire), EventQueue()
    watch = watch_of(wire, KEYS, d, POOLS)
    await sent(d, answer=answer, deadline_s=0.1)
    async with beside(watch.run()):
        assert await failure(answer) == "deadline_exceeded"
        await until(lambda: redis.exists(KEYS.commands(worker)), 5)
    assert await redis.lrange(KEYS.commands(worker), 0, -1) == [encode(Cancel(run_id(R1, 0)))]
    assert not await redis.exists(KEYS.request(run_id(R1, 0)))


async def test_a_retry_may_land_on_the_same_worker(redis: "Redis", wire: Wire) -> None:
    """Its second attempt is another run, with its own account.

    The worker was thought dead, or gave the request back.
    """
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    await sent(d)
    d.lost(d.in_flight[R1])
    await until(lambda: (f := d.in_flight[R1]).job.attempt == 1 and f.job.worker and f.is_placed)
    assert await queued(redis, worker) == [(R1, 0), (R1, 1)]
    assert set(await redis.hgetall(KEYS.reservations(worker))) == {b"r1.0", b"r1.1"}
    assert await redis.lrange(KEYS.commands(worker), 0, -1) == [encode(Cancel(run_id(R1, 0)))]
    assert await redis.exists(KEYS.request(run_id(R1, 0))) == 0


async def test_a_request_that_ends_while_it_waits_for_a_round_is_waited_for_no_longer(wire: Wire) -> None:
    """Its deadline passed while Redis was slow."""
    d, answer = dispatcher(wire), EventQueue()
    sending = asyncio.create_task(d.send(inflight(job(), answer)))
    await asyncio.sleep(0)
    d.fail(d.in_flight[R1], Saturated())
    await asyncio.wait_for(sending, 5)
    assert await failure(answer) == Saturated.code
    if d.placer._rounds is not None:
        await d.placer._rounds


async def test_one_request_that_cannot_be_placed_is_no_trouble_of_the_others(redis: "Redis", wire: Wire) -> None:
    """A request that msgpack can't carry fails alone."""
    await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    bad = replace(job("bad"), sampling=Sampling(max_tokens=5, logit_bias={2**70: 1.0}))
    outcomes = await asyncio.gather(*(d.send(inflight(j)) for j in (job("r1"), bad, job("r2"))), return_exceptions=True)
    assert [type(o).__name__ for o in outcomes] == ["NoneType", "XylemError", "NoneType"]


PREFIX = [1] * 320


async def test_siblings_of_one_burst_meet_and_do_not_pile_up(redis: "Redis", wire: Wire) -> None:
    """Forty requests of four new prefixes, all in one round: no prefix on more than two workers, all of which work."""
    workers = [await register(redis, KEYS, f"w{i}", max_running=64) for i in range(4)]
    d = dispatcher(wire)
    jobs = {f"r{i}": replace(job(f"r{i}"), prompt=[i % 4] * 3200 + [i] * 40) for i in range(40)}
    await asyncio.gather(*(d.send(inflight(j)) for j in jobs.values()))
    homes: dict[int, set[str]] = {group: set() for group in range(4)}
    for i, j in enumerate(jobs.values()):
        homes[i % 4].add(d.in_flight[j.request].job.worker)
    assert all(len(home) <= 2 for home in homes.values()), homes
    assert set().union(*homes.values()) == set(workers)


async def test_siblings_meet_from_two_api_replicas(redis: "Redis", wire: Wire) -> None:
    """The second replica knows what the first has placed and nobody has computed yet."""
    for i in range(4):  # busy enough to mind computing it twice
        await register(redis, KEYS, f"w{i}", speeds=Speeds(10_000.0, prefills_per_s=10.0, busy=0.85))
    one, two = dispatcher(wire), dispatcher(wire)
    await one.send(inflight(replace(job("r1"), prompt=[*PREFIX, 2])))
    await two.send(inflight(replace(job("r2"), prompt=[*PREFIX, 3])))
    assert one.in_flight[R1].job.worker == two.in_flight[RequestId("r2")].job.worker


async def test_what_finds_no_room_is_held_and_placed_in_order_of_urgency(redis: "Redis", wire: Wire) -> None:
    """Requests are not refused while there is a place in the line."""
    worker = await register(redis, KEYS, "w1", max_running=1)
    d = dispatcher(wire, max_queued=0)
    await sent(d, "running")
    names = [("late", 0, 60), ("soon", 0, 30), ("urgent", -1, 60)]
    waiting = [asyncio.create_task(d.send(inflight(job(n, seconds, priority=p)))) for n, p, seconds in names]
    await asyncio.sleep(0.2)
    assert d.placer.held == 3
    request_ids = [RequestId("running"), RequestId("urgent"), RequestId("soon")]
    for before, name in zip(request_ids, ("urgent", "soon", "late"), strict=True):
        await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)  # as the worker does at the end of `before`
        d.deliver(Done(before, 0))
        await asyncio.sleep(0.15)
        assert (RequestId(name), 0) in await queued(redis, worker)
    await asyncio.gather(*waiting)
    assert d.placer.held == 0


async def test_the_line_is_bounded_and_the_least_urgent_is_refused(redis: "Redis", wire: Wire) -> None:
    """The refusal has Retry-After; a more urgent request takes the place of one that is less so."""
    await register(redis, KEYS, "w1", max_running=1)
    d = dispatcher(wire, max_queued=0, busy={"max_held": 1})
    await sent(d, "running")
    usual = asyncio.create_task(d.send(inflight(job("usual"))))
    await asyncio.sleep(0.1)
    urgent = asyncio.create_task(d.send(inflight(job("urgent", priority=-1))))
    with pytest.raises(Saturated) as refusal:
        await asyncio.wait_for(usual, 5)
    assert refusal.value.retry_after_s == 3
    assert not urgent.done()
    await d.cancel([RequestId("urgent")])
    await asyncio.wait_for(urgent, 5)  # nobody awaits it any more


async def test_without_a_line_what_finds_no_room_is_refused_and_later_requests_are_served(
    redis: "Redis", wire: Wire
) -> None:
    """`max_held: 0`, whether it gives way to others or not."""
    worker = await register(redis, KEYS, "w1", max_running=1, aside_most=1)
    d = dispatcher(wire, max_queued=0, busy={"max_held": 0})
    await asyncio.wait_for(d.send(inflight(job("aside", aside=True))), 5)
    await asyncio.wait_for(d.send(inflight(job("running"))), 5)
    for name, aside in (("r2", False), ("r3", True), ("r4", False)):
        with pytest.raises(Saturated):
            await asyncio.wait_for(d.send(inflight(job(name, aside=aside))), 5)
        await d.cancel([RequestId(name)])
    assert (d.placer.held, list(d.placer.queue.held)) == (0, [])
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)
    await asyncio.wait_for(d.send(inflight(job("r5"))), 5)
    assert (RequestId("r5"), 0) in await queued(redis, worker)


async def test_without_a_line_what_was_accepted_waits_for_room_all_the_same(redis: "Redis", wire: Wire) -> None:
    """Its worker gave it back, and there is no room: it is not refused in the middle of its answer."""
    worker = await register(redis, KEYS, "w1", max_running=1)
    d = dispatcher(wire, max_queued=0, busy={"max_held": 0})
    await sent(d)
    d.deliver(Failed(R1, 0, "returned", ""))
    await asyncio.sleep(0.2)
    assert d.placer.held == 1
    with pytest.raises(Saturated):
        await asyncio.wait_for(d.send(inflight(job("urgent", priority=-1))), 5)
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)
    await until(lambda: (f := d.in_flight[R1]).job.attempt == 1 and f.job.worker and f.is_placed)
    assert (R1, 1) in await queued(redis, worker)


@pytest.mark.parametrize("part", ["_next", "_round", "stop"])
async def test_an_error_in_a_placement_round_fails_its_requests_only(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Held and new requests do not wait for ever, and the next one is served."""
    worker = await register(redis, KEYS, "w1", max_running=1)
    d, abandoned_job = dispatcher(wire, max_queued=0), job("left")
    await sent(d, "running")
    held_send = asyncio.create_task(d.send(inflight(job("held"))))
    await asyncio.sleep(0.1)
    placer, tries = d.placer, 0

    def breaks(*_: Any) -> Any:
        nonlocal tries
        tries += 1
        monkeypatch.undo()
        raise RuntimeError("unforeseen")

    owners = {"_next": placer.queue, "_round": placer, "stop": placer._abandoned}
    monkeypatch.setattr(owners[part], part, breaks)
    placer.stop_later(replace(abandoned_job, stages=[Stage("decode", POOL, worker, 0)]))
    async with asyncio.timeout(5):
        while not tries:
            await asyncio.sleep(0.01)
        if part == "stop":
            await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)
            await held_send
        else:
            (outcome,) = await asyncio.gather(held_send, return_exceptions=True)
            assert (type(outcome), getattr(outcome, "code", "")) == (XylemError, "internal_error")
            await d.cancel([RequestId("held")])
            await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)
            await sent(d, "next")
    assert tries == 1


async def test_a_held_request_is_placed_when_a_limit_is_raised(redis: "Redis", wire: Wire) -> None:
    """Nothing has to end for it."""
    await register(redis, KEYS, "w1", max_running=8)
    d = dispatcher(wire, busy={"queued_tokens": 1})
    await sent(d, "r1")
    held_send = asyncio.create_task(d.send(inflight(job("r2"))))
    await asyncio.sleep(0.2)
    assert not held_send.done()
    await redis.hset(KEYS.limits(POOL), "queued_tokens", "1000")
    await asyncio.wait_for(held_send, 5)


async def test_for_an_engine_without_events_guesses_are_written(redis: "Redis", wire: Wire) -> None:
    """The next request with that prefix finds it, until the guess expires or the cache would be full."""
    for i in range(2):
        await register(redis, KEYS, f"w{i}", kv_events=False)
    d = dispatcher(wire)
    await d.send(inflight(replace(job("r1"), prompt=[*PREFIX, 2])))
    home = d.in_flight[R1].job.worker
    d.deliver(Done(R1, 0))
    await redis.delete(KEYS.prefilling(home))
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), home)
    key = KEYS.predicted(POOL, place_id(home, 0))
    assert await redis.zcard(key) == 10
    assert 110_000 < await redis.pttl(key) <= 120_000
    second = inflight(replace(job("r2"), prompt=[*PREFIX, 3]), explain=True)
    await d.send(second)
    assert second.job.worker == home
    assert second.attempt.decisions["decode"].placement.cached == 10


async def test_no_more_is_guessed_than_a_cache_can_hold(redis: "Redis", wire: Wire) -> None:
    """The blocks that were used longest ago are taken to be evicted."""
    worker = await register(redis, KEYS, "w1", kv_events=False, total_blocks=15)
    d = dispatcher(wire)
    for name, token in (("r1", 1), ("r2", 2)):
        await d.send(inflight(replace(job(name), prompt=[token] * 321)))
        await asyncio.sleep(0.01)
    guesses = await redis.zrange(KEYS.predicted(POOL, place_id(worker, 0)), 0, -1)
    assert len(guesses) == 15
    assert set(chain(root(), [2] * 320, 32)) <= set(guesses)


async def test_the_next_group_of_pools_is_asked_when_the_first_has_nobody(redis: "Redis", wire: Wire) -> None:
    """A table names a pool; its being down is no reason to refuse."""
    await register(redis, KEYS, "w1")
    other = PoolId("other")
    pools = {other: Pool(model="m", engine="mock"), **POOLS}
    d = Dispatcher(wire, KEYS, API, FleetReader(wire, KEYS, pools, 10), pools)
    f = InFlight(job(), ((other,), (POOL,)), EventQueue(), RoutingHints())
    await d.send(f)
    assert f.job.stages[0].pool == POOL


async def test_requests_held_for_one_model_do_not_block_another(redis: "Redis", wire: Wire) -> None:
    """The number of held requests doesn't matter: each choice of pools has a line of its own."""
    other = PoolId("other")
    pools = {other: Pool(model="o", engine="mock"), **POOLS}
    await register(redis, KEYS, "w1", max_running=1)
    d = Dispatcher(wire, KEYS, API, FleetReader(wire, KEYS, pools, 0), pools)
    await sent(d, "running")
    many = [asyncio.create_task(d.send(inflight(job(f"r{i}", priority=-1)))) for i in range(40)]
    mine = await register(redis, KEYS, "w2", max_running=1, pool=other)
    await set_load(redis, KEYS.loads(other), mine, 1)
    await redis.hset(KEYS.pool(other), mine, "1,1")
    await redis.hdel(KEYS.pool(POOL), mine)
    held_send = asyncio.create_task(d.send(InFlight(job("other"), ((other,),), EventQueue(), RoutingHints())))
    await asyncio.sleep(0.2)
    assert d.placer.held == 41
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(other), mine)
    await asyncio.wait_for(held_send, 5)
    await d.cancel([RequestId(f"r{i}") for i in range(40)])
    await asyncio.wait_for(asyncio.gather(*many), 5)


async def test_what_is_overdue_when_its_turn_comes_is_placed_nowhere(redis: "Redis", wire: Wire) -> None:
    """Its client is told at once."""
    worker = await register(redis, KEYS, "w1")
    with pytest.raises(DeadlineOver):
        await asyncio.wait_for(dispatcher(wire).send(inflight(job(deadline_s=-0.001))), 5)
    assert await queued(redis, worker) == []


async def test_who_is_held_ends_with_its_deadline(redis: "Redis", wire: Wire) -> None:
    """Room never came."""
    await register(redis, KEYS, "w1", max_running=1)
    d, answer = dispatcher(wire, max_queued=0), EventQueue()
    await sent(d, "running")
    late = asyncio.create_task(d.send(inflight(job("late"), answer)))
    await asyncio.sleep(0.2)
    d.end_overdue(time.monotonic() + 30)
    assert "late" in d.in_flight
    d.end_overdue(time.monotonic() + 60)
    await asyncio.wait_for(late, 5)
    assert await failure(answer) == "deadline_exceeded"


@pytest.mark.parametrize("left", [False, True])
async def test_a_request_ends_though_redis_hangs_while_it_is_placed(redis: "Redis", wire: Wire, left: bool) -> None:
    """The request ends with its deadline, or because its client has left."""
    await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire), EventQueue()
    await sent(d, "first")  # it is connected
    await redis.execute_command("CLIENT", "PAUSE", 3000, "ALL")
    sending = asyncio.create_task(d.send(inflight(job("late"), answer)))
    await asyncio.sleep(0.1)
    assert not sending.done()
    if left:
        d.abandon([RequestId("late")])
    else:
        d.end_overdue(time.monotonic() + 60)
    await asyncio.wait_for(sending, 2)
    assert left or isinstance((await answer.take())[0], Failed)
    await d.cancel([RequestId("first"), RequestId("late")])


async def test_a_placement_on_a_worker_that_has_just_gone_is_retried(redis: "Redis", wire: Wire) -> None:
    """Its lease ended between the two round trips, and then nobody else had room; later somebody has."""

    class Slow(FleetReader):
        async def read(
            self, wanted: Mapping[PoolId, Sequence[bytes]], grids: Mapping[PoolId, Grid] | None = None
        ) -> dict[PoolId, PoolView]:
            views = await super().read(wanted, grids)
            await redis.delete(KEYS.worker(lost_worker))
            return views

    lost_worker = await register(redis, KEYS, "gone")
    full = await register(redis, KEYS, "full", max_running=1)
    await set_load(redis, KEYS.loads(POOL), full, 1)
    d = Dispatcher(wire, KEYS, API, Slow(wire, KEYS, POOLS, 0), POOLS)
    f = inflight(job())
    sending = asyncio.create_task(d.send(f))
    await asyncio.sleep(0.2)
    assert d.placer.held == 1
    assert f.job.worker == ""
    assert d.worker_lost(lost_worker) == 0
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), full)
    await asyncio.wait_for(sending, 5)
    assert f.job.worker == full


async def test_a_long_held_request_gets_its_outcome_as_an_event(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call returns; the outcome comes later."""
    monkeypatch.setattr("app.dispatch.placing.held_requests._SILENT_S", 0.1)
    await register(redis, KEYS, "w1", max_running=1)
    d, answer = dispatcher(wire, max_queued=0, busy={"max_held": 1}), EventQueue()
    await sent(d, "running")
    await asyncio.wait_for(d.send(inflight(job("held"), answer)), 5)
    assert d.placer.held == 1
    urgent = asyncio.create_task(d.send(inflight(job("urgent", priority=-1))))
    assert await failure(answer) == "saturated"
    await d.cancel([RequestId("urgent")])
    await asyncio.wait_for(urgent, 5)


async def test_a_newcomer_does_not_overtake_the_line(redis: "Redis", wire: Wire) -> None:
    """The one place goes to a request that has waited, also when the newcomer's round is the one that sees it."""
    worker = await register(redis, KEYS, "w1", max_running=1)
    d = dispatcher(wire, max_queued=0)
    await sent(d, "running", 10)
    waiting = [asyncio.create_task(d.send(inflight(job(f"old{i}", 20 + i)))) for i in range(12)]
    await asyncio.sleep(0.2)
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)
    newcomer = asyncio.create_task(d.send(inflight(job("new", 60))))
    await asyncio.wait_for(waiting[0], 5)
    assert not newcomer.done()
    await d.cancel([RequestId("new"), *(RequestId(f"old{i}") for i in range(12))])
    await asyncio.wait_for(asyncio.gather(newcomer, *waiting), 5)


async def test_an_outage_does_not_empty_the_line(redis: "Redis", wire: Wire) -> None:
    """A held request needs nothing of Redis but room, later."""
    await register(redis, KEYS, "w1", max_running=1)
    reader = FleetReader(wire, KEYS, POOLS, 0)
    d = Dispatcher(wire, KEYS, API, reader, POOLS, patience_s=5)
    await sent(d, "running")
    held_send = asyncio.create_task(d.send(inflight(job("held"))))
    await asyncio.sleep(0.15)
    real, reader.read = reader.read, AsyncMock(side_effect=StoreDown())  # type: ignore[method-assign]
    await asyncio.sleep(0.3)
    assert d.placer.held == 1
    assert not held_send.done()
    await redis.flushdb()
    await register(redis, KEYS, "w2")
    reader.read = real  # type: ignore[method-assign]
    await asyncio.wait_for(held_send, 5)


async def test_aside_requests_wait_in_a_line_of_their_own(redis: "Redis", wire: Wire) -> None:
    """An online request goes past it, drops nobody from it, and is not dropped for it."""
    worker = await register(redis, KEYS, "w1", max_running=1, aside_most=1)
    d = dispatcher(wire, max_queued=0, busy={"max_held": 2})
    await sent(d, "aside0", aside=True)
    assert await queued(redis, worker) == [(RequestId("aside0"), 0)]
    held_sends = [asyncio.create_task(d.send(inflight(job(f"aside{i}", priority=i, aside=True)))) for i in (1, 2)]
    await asyncio.sleep(0.15)
    await asyncio.wait_for(d.send(inflight(job("online"))), 1)
    assert (await queued(redis, worker))[0] == (RequestId("online"), 0), "and is taken from the queue before it"
    waiting = asyncio.create_task(d.send(inflight(job("online2"))))
    await asyncio.sleep(0.15)
    assert d.placer.held == 3
    assert not any(task.done() for task in (*held_sends, waiting))
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)
    d.deliver(Done(RequestId("online"), 0))
    await asyncio.wait_for(waiting, 1)
    assert not held_sends[0].done(), "a first token is awaited there"
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)
    await asyncio.wait_for(held_sends[0], 1)
    assert not held_sends[1].done()
    await d.cancel([RequestId("aside2")])
    await asyncio.wait_for(held_sends[1], 1)


async def test_a_burst_of_what_gives_way_goes_through_its_line_without_a_pause(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few in each round, one round after the other: with one pause it would last longer than is waited for."""
    monkeypatch.setattr("app.dispatch.placing.placement_queue.LOOK_EVERY_S", 60.0)
    worker = await register(redis, KEYS, "w1", max_running=200, aside_most=200)
    d = dispatcher(wire)
    await asyncio.wait_for(asyncio.gather(*(d.send(inflight(job(f"a{i}", aside=True))) for i in range(100))), 30)
    assert len(await queued(redis, worker)) == 100
