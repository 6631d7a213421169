"""Tests what becomes of requests whose worker, or Redis, goes away.

Redis is real, and workers are only leases.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any
from unittest.mock import MagicMock

import pytest
from redis.asyncio import Redis

from app.dispatch.answering.content_hook import ContentHook
from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.generation import Generation
from app.dispatch.answering.prompts import Adopted
from app.dispatch.answering.token_inbox import TokenInbox
from app.dispatch.event_queue import EventQueue
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.inflight import ChoiceOutput, InFlight, RoutingHints
from app.dispatch.media.media_store import MediaStore, Samples
from app.errors import HookDown, ModelNotFound, NoWorker, Saturated, StoreDown
from app.ids import PoolId, RequestId, WorkerId, run_id, worker_queue
from app.messages.commands import Cancel
from app.messages.events import Delta, Done, Event, EventBatch, Failed
from app.messages.job import Sampling, decode_job
from app.messages.wire import encode
from app.pools.schema import Pool
from app.settings import Settings
from app.store import Command, Wire, async_client
from app.store.scripts import FORGET_LOADS
from app.telemetry import WORKERS_LOST
from app.tenants.records import NOBODY
from tests.background import beside, until, until_not
from tests.integration.conftest import POOL, had_worker, register, watch_of
from tests.integration.test_dispatch import API, KEYS, POOLS, R1, failure, inflight, job, queued, sent
from tests.proxy import Proxy
from tests.wires import connected


def dispatcher(wire: Wire, max_queued: int = 100, patience_s: float = 5.0, max_migrations: int = 3) -> Dispatcher:
    pools = {POOL: Pool(model="m", engine="mock")}
    reader = FleetReader(wire, KEYS, pools, max_queued)
    return Dispatcher(wire, KEYS, API, reader, pools, patience_s=patience_s, max_migrations=max_migrations)


async def events(answer: EventQueue, count: int = 1) -> list[Event]:
    event_list: list[Event] = []
    async with asyncio.timeout(5):
        while len(event_list) < count:
            event_list += await answer.take()
    return event_list


class Flaky(Wire):
    """A wire whose placements are written, and whose replies come late or never."""

    def __init__(self, redis: "Redis") -> None:
        super().__init__(redis)
        self.written = asyncio.Event()
        self.reply = asyncio.Event()
        self.reply.set()
        self.lose = 0  # so many replies
        self.gone = 0  # so many of them say that the worker has gone
        self.placings = 0

    async def execute_each(self, commands: Sequence[Command]) -> list[Any]:
        replies = await super().execute_each(commands)
        if any(command[0] == "EVAL" and b"LPUSH" in str(command[1]).encode() for command in commands):
            self.placings += sum(command[0] == "EVAL" for command in commands)
            self.written.set()
            await self.reply.wait()
            if self.lose:
                self.lose -= 1
                raise StoreDown("lost")
            if self.gone:
                self.gone -= 1
                return [0] * len(replies)
        return replies


@pytest.mark.parametrize("gone", [0, 1])
async def test_a_request_that_comes_back_before_its_placing_is_confirmed_is_placed_once_more(
    redis: "Redis", gone: int
) -> None:
    """A dead engine answers sooner than this process gets round to reading Redis' reply: nobody waits for ever."""
    await register(redis, KEYS, "w1")
    wire = Flaky(redis)
    wire.reply.clear()
    wire.gone = gone
    d, answer = dispatcher(wire), EventQueue()
    sending = asyncio.create_task(d.send(inflight(job(), answer)))
    await asyncio.wait_for(wire.written.wait(), 5)
    d.deliver(Failed(R1, 0, "returned", ""))
    await asyncio.sleep(0.05)
    wire.reply.set()
    await asyncio.wait_for(sending, 5)
    await until(lambda: d.in_flight[R1].job.worker)
    await asyncio.sleep(0.1)
    assert d.in_flight[R1].job.attempt == 1
    assert await queued(redis, WorkerId("w1")) == [(R1, 0), (R1, 1)]
    assert wire.placings == 2


async def test_a_placing_that_nobody_confirms_is_a_new_attempt_and_the_old_one_is_stopped(redis: "Redis") -> None:
    """Nobody knows what got through: events of the old attempt are dropped, and its worker is told."""
    worker = await register(redis, KEYS, "w1")
    wire = Flaky(redis)
    d, answer = dispatcher(wire), EventQueue()
    wire.lose = 1
    await asyncio.wait_for(d.send(inflight(job(), answer)), 5)
    d.deliver(Delta(R1, 0, "stale", [1]))
    d.deliver(Delta(R1, 1, "fresh", [2]))
    (event,) = await events(answer)
    assert isinstance(event, Delta)
    assert event.text == "fresh"
    assert await redis.exists(KEYS.request(run_id(R1, 0))) == 0
    assert await redis.lrange(KEYS.commands(worker), 0, -1) == [encode(Cancel(run_id(R1, 0)))]


async def test_a_returned_request_whose_placement_reply_is_lost_is_queued_once(redis: "Redis") -> None:
    """Both at once: still one attempt is the living one, with one message."""
    await register(redis, KEYS, "w1")
    wire = Flaky(redis)
    wire.reply.clear()
    wire.lose = 1
    d = dispatcher(wire)
    sending = asyncio.create_task(d.send(inflight(job())))
    await asyncio.wait_for(wire.written.wait(), 5)
    d.deliver(Failed(R1, 0, "returned", ""))
    await asyncio.sleep(0.05)
    wire.reply.set()
    await asyncio.wait_for(sending, 5)
    await until(lambda: d.in_flight[R1].job.worker)
    await asyncio.sleep(0.2)
    living = d.in_flight[R1].job.attempt
    entries = await queued(redis, WorkerId("w1"))
    assert len(entries) == len(set(entries))
    assert (R1, living) in entries
    assert await redis.keys(KEYS.request(run_id(R1, 0))[:-1] + "*") == [KEYS.request(run_id(R1, living)).encode()]


async def test_what_redis_refuses_of_a_cancel_holds_up_nobody_else(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders that can't be given, for want of memory, say: others are placed all the same."""
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    await sent(d)
    await redis.set(KEYS.commands(worker), "no list")
    await d.cancel([R1])
    await asyncio.wait_for(d.send(inflight(job("r2"))), 2)
    await redis.delete(KEYS.commands(worker))
    await asyncio.sleep(0.3)
    assert await redis.lrange(KEYS.commands(worker), 0, -1) == [encode(Cancel(run_id(R1, 0)))], "told later"


async def test_time_held_for_room_does_not_shorten_the_patience_for_an_outage(redis: "Redis", wire: Wire) -> None:
    """The time in the line is no time without Redis or a worker."""
    worker = await register(redis, KEYS, "w1", max_running=1)
    d, answer = dispatcher(wire, max_queued=0, patience_s=0.5), EventQueue()
    await sent(d, "running")
    held_send = asyncio.create_task(d.send(inflight(job("held"), answer)))
    await asyncio.sleep(0.8)
    await had_worker(redis, KEYS)
    lease = await redis.getdel(KEYS.worker(worker))
    await asyncio.sleep(0.2)
    assert d.placer.held == 1
    await redis.set(KEYS.worker(worker), lease)
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)
    await asyncio.wait_for(held_send, 5)
    assert (RequestId("held"), 0) in await queued(redis, worker)


@pytest.mark.parametrize("way", ["holds", "closes", "loads"])
async def test_the_patience_for_redis_counts_from_the_first_attempt(redis: "Redis", store_url: str, way: str) -> None:
    """Each attempt may take long: one that loads its data says nothing for seconds, and a client waits meanwhile."""
    await register(redis, KEYS, "w1")
    proxy = Proxy(store_url)
    async with connected(await proxy.start()) as (_, wire):
        d = dispatcher(wire, patience_s=3)
        await sent(d, "before")
        {"holds": proxy.holds, "closes": proxy.closes, "loads": lambda: proxy.refuses("LOADING It is.")}[way]()
        began = time.monotonic()
        with pytest.raises(StoreDown):
            await sent(d, "held")
        assert 2.9 < time.monotonic() - began < 4.9
    await proxy.stop()


async def test_without_workers_an_accepted_request_waits_as_long_as_it_has_patience(redis: "Redis", wire: Wire) -> None:
    """One that has lost its worker hopes for another, and then hears why not."""
    worker = await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire, patience_s=0.6), EventQueue()
    await sent(d, answer=answer)
    await redis.delete(KEYS.worker(worker))
    began = time.monotonic()
    d.worker_lost(worker)
    assert await failure(answer) == NoWorker.code
    assert 0.6 <= time.monotonic() - began < 2


async def test_a_request_that_kills_its_workers_is_given_up(redis: "Redis", wire: Wire) -> None:
    """The error says how many workers it was; those that only gave it back don't count."""
    worker = await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire, max_migrations=2), EventQueue()
    f = await sent(d, answer=answer)
    for has_died in (True, False, False, True):
        attempt = f.job.attempt
        d.lost(f, died=has_died)
        await until(lambda before=attempt: f.job.worker and f.job.attempt == before + 1 and f.is_placed)
    assert d.worker_lost(worker) == 1
    (event,) = await events(answer)
    assert isinstance(event, Failed)
    assert event.code == "worker_lost"
    assert event.message == "3 workers died with this request on them. It is not retried."
    assert not d.in_flight


async def test_a_request_that_got_on_each_time_outlives_more_workers(redis: "Redis", wire: Wire) -> None:
    """Three times as many, though the last of them died before anything came: it is hardly the cause."""
    await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire, max_migrations=1), EventQueue()
    f = await sent(d, answer=answer)
    for got_on in (True, True, False):
        await until(lambda: f.job.worker and f.is_placed)
        if got_on:
            d.deliver(Delta(R1, f.job.attempt, "x", [1]))
        d.lost(f, died=True)
    assert (f.deaths, f.early_deaths) == (3, 1)
    await until(lambda: f.job.worker and f.is_placed)
    d.deliver(Delta(R1, f.job.attempt, "x", [1]))
    d.lost(f, died=True)
    *_, end = await events(answer, 4)
    assert isinstance(end, Failed)
    assert end.code == "worker_lost"


async def test_a_worker_that_had_not_begun_a_request_did_not_die_of_it(redis: "Redis", wire: Wire) -> None:
    """The request was in its queue: when many workers die at once, it may be placed on one that is dead already."""
    worker = await register(redis, KEYS, "w1")
    begun_request, waiting = RequestId("begun"), RequestId("waiting")
    d = dispatcher(wire)
    for request in (begun_request, waiting):
        await sent(d, request)
    await redis.lpush(KEYS.queue(worker_queue(POOL, worker), 3), b"no message")
    while (begun_request, 0) in await queued(redis, worker):
        await redis.rpop(KEYS.queue(worker_queue(POOL, worker), 3))
    await redis.delete(KEYS.worker(worker))
    wire.steady_s = lambda: 60.0  # type: ignore[method-assign]
    async with beside(watch_of(wire, KEYS, d, POOLS).run()):
        await until(lambda: all(f.job.attempt == 1 for f in d.in_flight.values()))
        assert [d.in_flight[request].deaths for request in (begun_request, waiting)] == [1, 0]


def dies(d: Dispatcher, f: InFlight, deaths: int = 1) -> None:
    """The worker dies of the request, which that many have done before."""
    f.deaths = deaths
    d.lost(f, died=True)


async def suspects(d: Dispatcher, names: Sequence[str]) -> list[InFlight]:
    """Requests that have been on two dead workers each."""
    requests = [await sent(d, name) for name in names]
    for deaths in (1, 2):
        for f in requests:
            await until(lambda f=f: f.job.worker)
            dies(d, f, deaths - 1)
        if deaths == 1:
            await until(lambda: all(f.job.worker for f in requests))
    return requests


async def are_placed_one_by_one(d: Dispatcher, found: Sequence[InFlight]) -> None:
    """The next when one has made a token."""
    for ended_count in range(len(found)):
        await until(lambda n=ended_count: sum(bool(f.job.worker) for f in found) == n + 1)
        await asyncio.sleep(0.3)
        placed_requests = [f for f in found if f.job.worker]
        assert len(placed_requests) == ended_count + 1
        for f in placed_requests:
            if not f.out[0].tokens:
                d.deliver(Delta(f.job.request, f.job.attempt, "x", [1]))


async def test_suspects_are_tried_one_at_a_time(redis: "Redis", wire: Wire) -> None:
    """The one that kills workers is thus found."""
    await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    await are_placed_one_by_one(d, await suspects(d, ("a", "b", "c")))


async def test_suspects_that_prefer_other_pools_of_the_same_are_tried_one_at_a_time(redis: "Redis", wire: Wire) -> None:
    """Long and short prompts prefer different pools where a model has a table of pools."""
    other = PoolId("other")
    pools = {pool: Pool(model="m", engine="mock") for pool in (POOL, other)}
    d = Dispatcher(wire, KEYS, API, FleetReader(wire, KEYS, pools, 100), pools, patience_s=5.0)
    await register(redis, KEYS, "w1")
    requests = []
    for name, groups in (("short", ((POOL,), (other,))), ("long", ((other,), (POOL,)))):
        await d.send(InFlight(job(name), groups, EventQueue(), RoutingHints()))
        requests.append(d.in_flight[RequestId(name)])
    for one in requests:
        dies(d, one)
    await are_placed_one_by_one(d, requests)


async def test_a_suspect_of_a_batch_is_tried_alone_too(redis: "Redis", wire: Wire) -> None:
    """The line may go to the worker that clients' suspects go to, and be what kills it."""
    worker = await register(redis, KEYS, "w1", aside_most=1)
    d = dispatcher(wire)
    requests = []
    for name in ("line", "online"):
        requests.append(await sent(d, name, aside=name == "line"))
        dies(d, requests[-1])
        await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)  # else it awaits the first token of the lost one
        await until(lambda: requests[0].job.attempt == 1 and requests[0].job.worker)
    line, online = requests
    await asyncio.sleep(0.1)
    assert not online.job.worker
    d.deliver(Delta(line.job.request, line.job.attempt, "x", [1]))
    await until(lambda: online.job.worker)


async def test_suspects_without_room_hold_up_no_other(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such suspects are on no worker that they could end.

    Lines of a batch have no room while clients' requests have.
    """
    monkeypatch.setattr("app.dispatch.answering.retry._ROOM_S", 0.2)
    monkeypatch.setattr("app.store.handling._BEGINNING_S", 60.0)
    worker = await register(redis, KEYS, "w1", aside_most=9)
    d = dispatcher(wire)
    lines = [job(f"line{i}", aside=True) for i in range(40)]
    for line in lines:
        await d.send(inflight(line))
        await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)  # else it awaits the first token of the last one
    await sent(d, "online")
    await register(redis, KEYS, "w1", aside_most=0)
    for request in [*d.in_flight.values()]:
        dies(d, request)
    online = d.in_flight[RequestId("online")]
    await until(lambda: online.job.attempt == 1 and online.job.worker)
    assert not any(d.in_flight[line.request].job.worker for line in lines)


@pytest.mark.parametrize("full", [False, True])
async def test_suspects_that_wait_for_a_worker_are_tried_one_at_a_time_when_it_comes(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """The engine may take any time to start again, and other workers may live that are full."""
    monkeypatch.setattr("app.dispatch.answering.retry._ROOM_S", 0.1)
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire, max_queued=0)
    requests = [await sent(d, name) for name in ("a", "b", "c", "d")]
    await redis.delete(KEYS.worker(worker))
    if full:
        await register(redis, KEYS, "full", max_running=0)
    for one in requests:
        dies(d, one)
    await asyncio.sleep(0.5)
    assert not any(one.job.worker for one in requests)
    await register(redis, KEYS, "w2")
    await are_placed_one_by_one(d, requests)


async def test_a_suspect_lost_right_after_its_placement_blocks_no_other(redis: "Redis", wire: Wire) -> None:
    """The suspect does not block itself either, when it comes back before its placement was noted."""
    await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    real = d.placer.place

    async def place(f: InFlight) -> None:
        await real(f)
        if f.job.request == "a" and f.job.attempt == 2:
            d.lost(f)

    d.placer.place = place  # type: ignore[method-assign]
    requests = await suspects(d, ("a", "b"))
    await until(lambda: requests[1].job.worker)
    d.deliver(Delta(RequestId("b"), 2, "x", [1]))
    await until(lambda: requests[0].job.attempt == 3 and requests[0].job.worker)


async def test_a_suspect_without_output_holds_up_no_other_models(redis: "Redis", wire: Wire) -> None:
    other = PoolId("other")
    pools = {POOL: Pool(model="m", engine="mock"), other: Pool(model="n", engine="mock")}
    d = Dispatcher(wire, KEYS, API, FleetReader(wire, KEYS, pools, 0), pools, patience_s=5.0)
    await register(redis, KEYS, "w1")
    await register(redis, KEYS, "w2", pool=other)
    waits = await sent(d, "waits")
    dies(d, waits)
    await until(lambda: waits.job.worker)  # it goes on, and has no output: its turn is not over
    goes_on = InFlight(job("goes on"), ((other,),), EventQueue(), RoutingHints())
    await d.send(goes_on)
    dies(d, goes_on)
    await until(lambda: goes_on.job.attempt == 1 and goes_on.job.worker)
    assert not waits.has_own_output


async def test_a_suspects_turn_ends_though_it_has_no_room(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one of the same places, of another tenant perhaps, tries its luck."""
    monkeypatch.setattr("app.store.handling._BEGINNING_S", 0.2)
    await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    requests = await suspects(d, ("a", "b"))
    await until(lambda: all(f.job.worker for f in requests))
    assert not any(f.has_own_output for f in requests)


async def test_an_answer_that_is_all_out_ends_without_another_worker(redis: "Redis", wire: Wire) -> None:
    """Only its last event was lost."""
    worker = await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire), EventQueue()
    await sent(d, answer=answer)
    d.deliver(Delta(R1, 0, "x", [1], finish="stop"))
    d.worker_lost(worker)
    assert [type(e) for e in await events(answer, 2)] == [Delta, Done]
    assert len(await queued(redis, worker)) == 1


async def test_a_gap_that_cannot_be_filled_is_a_new_attempt_and_no_death(redis: "Redis", wire: Wire) -> None:
    """The worker's events in between are lost, which is not the request's fault."""
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    inbox = TokenInbox(wire, KEYS, API, d.deliver, lambda w: d.worker_lost(w, died=False))
    await sent(d)
    for seq in (1, 3):
        delta = Delta(R1, 0, "x", [seq])
        await redis.xadd(KEYS.out(API), {"s": encode(EventBatch(worker, seq, [delta]))})
    await inbox.repair()
    f = d.in_flight[R1]
    assert (f.job.attempt, f.deaths, f.out[0].tokens) == (1, 0, [1])
    await until(lambda: f.job.worker)
    record = decode_job(await redis.get(KEYS.request(f.job.run)))
    assert record.begun[0].tokens == [1]


async def test_a_worker_that_gave_up_what_is_still_awaited_ends_nobodys_answer(redis: "Redis", wire: Wire) -> None:
    """The worker thought this API replica dead. The client never left, and must not hear that it did."""
    await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire), EventQueue()
    await sent(d, answer=answer)
    d.deliver(Failed(R1, 0, "cancelled", ""))
    await until(lambda: d.in_flight[R1].job.attempt == 1 and d.in_flight[R1].job.worker)
    assert answer.pending() == 0


async def test_what_redis_has_forgotten_is_placed_again(redis: "Redis", wire: Wire) -> None:
    """A Redis without its last second, or workers that dropped it while this replica had no lease."""
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    watch = watch_of(wire, KEYS, d, POOLS)
    await sent(d)
    await redis.delete(KEYS.request(run_id(R1, 0)), KEYS.queue(worker_queue(POOL, worker), 3), KEYS.api(API))
    async with beside(watch.run()):
        assert await until(lambda: queued(redis, worker)) == [(R1, 1)]
        assert d.in_flight[R1].deaths == 0


async def test_a_server_of_tokens_that_hangs_holds_up_no_look_for_dead_workers(redis: "Redis", wire: Wire) -> None:
    """A look renews the replica's lease; without it, workers would drop all of its requests."""

    async def hears(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            await reader.read()  # up to the end

    silent = await asyncio.start_server(hears, "127.0.0.1")
    client = async_client(f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}/0")
    tokens = Wire(client)
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    watch = watch_of(wire, KEYS, d, POOLS, tokens)
    await sent(d)
    await redis.delete(KEYS.worker(worker))
    async with asyncio.timeout(4):  # its own connection would be waited for longer
        await watch.look(0.0)
    assert await redis.pttl(KEYS.api(API)) > 1000
    assert not await redis.hexists(KEYS.pool(POOL), worker)
    tokens.close()
    await client.aclose()
    silent.close()
    await silent.wait_closed()


async def test_records_of_a_worker_and_a_replica_that_died_together_expire(redis: "Redis", wire: Wire) -> None:
    """Nobody takes its requests back, and a line of a batch would stay for a day."""
    worker = await register(redis, KEYS, "w1")
    d, run = dispatcher(wire), run_id(R1, 0)
    await sent(d, deadline_s=86_400)
    assert await redis.ttl(KEYS.request(run)) > 80_000
    await redis.delete(KEYS.worker(worker))
    other = dispatcher(wire)
    wire.steady_s = lambda: 60.0  # type: ignore[method-assign]
    watch = watch_of(wire, KEYS, other, POOLS)
    async with beside(watch.run()):
        async with asyncio.timeout(5):
            while await redis.ttl(KEYS.request(run)) > 600:
                await asyncio.sleep(0.05)
    permanent_keys = [key for key in await redis.keys(KEYS.prefix + "*") if await redis.ttl(key) < 0]
    assert not [key for key in permanent_keys if run.encode() in key or worker.encode() in key]


async def test_deaths_of_workers_outlive_the_replica_that_saw_them(redis: "Redis", wire: Wire) -> None:
    """An adopted answer does not begin again at nought; one whose workers live leaves nothing in Redis."""
    for name in ("w1", "w2"):
        await register(redis, KEYS, name)
    d = dispatcher(wire)
    f = await sent(d)
    await sent(d, "r2")
    for deaths in (1, 2):
        d.lost(f, died=True)
        await until(lambda deaths=deaths: f.job.attempt == deaths and f.job.worker)
    name = KEYS.handling("request:r1")
    while await redis.get(name) != b"2 2":
        await asyncio.sleep(0.01)
    assert await redis.keys("*handling*") == [name.encode()]
    assert 0 < await redis.ttl(name) <= 3600
    adopted_request, good = inflight(job()), inflight(job("r2"))
    await dispatcher(wire).deaths.recall([adopted_request, good])
    assert [(f.early_deaths, f.deaths) for f in (adopted_request, good)] == [(2, 2), (0, 0)]
    await redis.set(name, "two")  # by a hand: the answers that are adopted with it go on
    adopted_request, good = inflight(job()), inflight(job("r2"))
    await dispatcher(wire).deaths.recall([adopted_request, good])
    assert adopted_request.deaths == 0


async def test_a_death_is_counted_once_however_many_replicas_see_it(redis: "Redis", wire: Wire) -> None:
    """An alert at three deaths would fire at one, where there are three replicas."""
    before = WORKERS_LOST._value.get()  # type: ignore[no-untyped-call]
    replicas = [dispatcher(wire) for _ in range(3)]
    wire.steady_s = lambda: 60.0  # type: ignore[method-assign]
    for n, name in enumerate(("w1", "w2"), 1):
        worker = await register(redis, KEYS, name)
        watches = [watch_of(wire, KEYS, d, POOLS) for d in replicas]
        for d in replicas:
            await sent(d, f"r{n}")
        await redis.delete(KEYS.worker(worker))
        for watch in watches:
            await watch.look(0.0)
        assert WORKERS_LOST._value.get() == before + n  # type: ignore[no-untyped-call]


async def test_what_has_ended_is_not_taken_for_forgotten(redis: "Redis", wire: Wire) -> None:
    """Its record is gone, since its last event is there: that is read first."""
    worker = await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire), EventQueue()
    watch = watch_of(wire, KEYS, d, POOLS)
    await sent(d, answer=answer)
    await redis.xadd(KEYS.out(API), {"s": encode(EventBatch(worker, 1, [Done(R1, 0)]))})
    await redis.delete(KEYS.request(run_id(R1, 0)))
    async with beside(watch.run()):
        assert [type(e) for e in await events(answer)] == [Done]
    assert len(await queued(redis, worker)) == 1


async def test_an_adopted_answer_of_which_only_the_end_was_lost_ends(wire: Wire) -> None:
    """Its owner died between the last token and the end: nothing is left to be computed, and nothing fails."""
    plan = GenerationPlan("chatcmpl", MagicMock(), [[1, 2]], [Sampling(max_tokens=1)], 60)
    adoption = Adopted(R1, time.time(), 1000, {0: ChoiceOutput([7], 1, True)})
    async with Generation(plan, dispatcher=dispatcher(wire), adoption=adoption) as call:
        assert await call.deltas() == []


@pytest.mark.parametrize("has_begun", [False, True])
async def test_the_prompt_of_an_adopted_answer_is_inspected_unless_the_answer_has_begun(
    wire: Wire, has_begun: bool
) -> None:
    """Its owner may have died while it waited for the content hook: what that would refuse is not computed."""
    settings = Settings(redis_url="redis://nowhere", hook_url="http://127.0.0.1:1/inspect", _env_file=None)
    d = dispatcher(wire, patience_s=0)
    d.hook = ContentHook(settings)
    plan = GenerationPlan("chatcmpl", model := MagicMock(), [[1, 2]], [Sampling(max_tokens=2)], 60)
    model.name = "m"
    adoption = Adopted(R1, time.time(), 1000, {0: ChoiceOutput([7], 1)} if has_begun else {})
    with pytest.raises(ModelNotFound if has_begun else HookDown):  # the former by who places it
        await Generation(plan, dispatcher=d, adoption=adoption).__aenter__()


async def test_a_placement_sent_twice_is_one_also_when_its_worker_went_in_between(redis: "Redis", wire: Wire) -> None:
    """The same attempt would be decided anew otherwise, and its message stay where nobody reads it."""
    worker = await register(redis, KEYS, "w1")
    d = dispatcher(wire)
    sent_commands: list[Command] = []
    real = wire.execute_each

    async def spy(commands: Sequence[Command]) -> list[Any]:
        sent_commands.extend(c for c in commands if c[0] == "EVAL" and "LPUSH" in c[1])
        return await real(commands)

    wire.execute_each = spy  # type: ignore[method-assign]
    await sent(d)
    await redis.delete(KEYS.worker(worker))
    assert await real(sent_commands) == [1]
    assert await queued(redis, worker) == [(R1, 0)]


@pytest.mark.parametrize("aside", [False, True])
async def test_a_new_request_waits_for_a_model_that_had_a_worker_lately(
    redis: "Redis", wire: Wire, aside: bool
) -> None:
    """A replica that has only just been started waits too: Redis knows of the worker."""
    await had_worker(redis, KEYS)
    d = dispatcher(wire, patience_s=30)
    new = asyncio.create_task(d.send(inflight(job("new", aside=aside))))
    await asyncio.sleep(0.3)
    assert d.placer.held == 1
    two = await register(redis, KEYS, "w2", aside_most=1)
    await asyncio.wait_for(new, 5)
    assert await queued(redis, two) == [(RequestId("new"), 0)]


async def test_a_new_request_waits_while_the_last_worker_drains(redis: "Redis", wire: Wire) -> None:
    """The worker is being restarted."""
    await register(redis, KEYS, "w1", draining=True)
    d = dispatcher(wire, patience_s=30)
    new = asyncio.create_task(d.send(inflight(job("new"))))
    await asyncio.sleep(0.3)
    assert d.placer.held == 1
    await register(redis, KEYS, "w2")
    await asyncio.wait_for(new, 5)


@pytest.mark.parametrize(("patience_s", "lately_s"), [(2.0, 60.0), (60.0, 2.0)])
async def test_when_no_worker_comes_all_new_requests_hear_so_in_time(
    redis: "Redis", wire: Wire, patience_s: float, lately_s: float
) -> None:
    """The time is the patience of each request, or the end of "lately".

    The number of requests, and what waits before them, doesn't matter.
    """
    one = await register(redis, KEYS, "w1")
    d, answer = dispatcher(wire, patience_s=patience_s), EventQueue()
    accepted_requests = [inflight(job(f"accepted{i}"), answer) for i in range(12)]
    for f in accepted_requests:
        await d.send(f)
    await redis.delete(KEYS.worker(one))
    d.worker_lost(one)
    await had_worker(redis, KEYS, lately_s)
    new = [asyncio.create_task(d.send(inflight(job(f"new{i}")))) for i in range(40)]
    await until(lambda: d.placer.held == 52)
    assert not [task for task in new if task.done()]
    outcomes = await asyncio.wait_for(asyncio.gather(*new, return_exceptions=True), 10)
    assert {type(o) for o in outcomes} == {NoWorker}
    await d.cancel([RequestId(f"new{i}") for i in range(40)])
    await redis.delete(KEYS.seen(POOL))
    for aside in (False, True):  # from now on it is long ago
        with pytest.raises(NoWorker):
            await asyncio.wait_for(d.send(inflight(job("late", aside=aside))), 1)
        await d.cancel([RequestId("late")])
    assert d.placer.held == (12 if patience_s == 60 else 0), "who was accepted has all his patience"


@pytest.mark.parametrize("aside", [False, True])
async def test_a_model_that_had_no_worker_is_refused_at_once_each_time_until_it_has_one(
    redis: "Redis", wire: Wire, aside: bool
) -> None:
    """The result for one request is not believed for the next."""
    d = dispatcher(wire, patience_s=60)
    for i in range(3):
        with pytest.raises(NoWorker):
            await asyncio.wait_for(d.send(inflight(job(f"r{i}", aside=aside))), 1)
        await d.cancel([RequestId(f"r{i}")])
    await register(redis, KEYS, "w1", aside_most=1)
    await asyncio.wait_for(d.send(inflight(job("r3", aside=aside))), 1)


async def test_no_more_wait_for_a_worker_than_may_wait_for_room(redis: "Redis", wire: Wire) -> None:
    """`busy.max_held`."""
    await had_worker(redis, KEYS)
    pools = {POOL: Pool.model_validate({"model": "m", "engine": "mock", "busy": {"max_held": 3}})}
    d = Dispatcher(wire, KEYS, API, FleetReader(wire, KEYS, pools, 100), pools, patience_s=60)
    new = [asyncio.create_task(d.send(inflight(job(f"r{i}")))) for i in range(5)]
    await asyncio.sleep(0.3)
    assert [task.done() for task in new] == [False, False, False, True, True]
    assert all(isinstance(task.exception(), Saturated | NoWorker) for task in new[3:])
    await register(redis, KEYS, "w1")
    await asyncio.wait_for(asyncio.gather(*new[:3]), 5)


async def test_a_request_that_finds_each_worker_gone_fails_after_some_tries(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that is there when the fleet is read, and never when the placement is written."""
    await register(redis, KEYS, "w1")
    d, writes, real = dispatcher(wire, patience_s=0.2), 0, wire.execute_each

    async def gone(commands: Sequence[Command]) -> list[Any]:
        nonlocal writes
        if not any(c[0] == "EVAL" and "LPUSH" in c[1] for c in commands):
            return await real(commands)
        writes += 1
        return [0] * len(commands)

    monkeypatch.setattr(wire, "execute_each", gone)
    monkeypatch.setattr(wire, "steady_s", lambda: 60.0)
    with pytest.raises(NoWorker, match="keep disappearing"):
        await asyncio.wait_for(d.send(inflight(job())), 5)
    assert 5 <= writes < 40, "between each five it waits"


def with_media(redis: "Redis", wire: Wire) -> Dispatcher:
    reader = FleetReader(wire, KEYS, POOLS, 100)
    return Dispatcher(wire, KEYS, API, reader, POOLS, media=MediaStore(redis, KEYS, 5.0, 2**20, 100.0))


async def test_media_that_redis_has_lost_are_written_anew_before_their_request_is_placed_anew(
    redis: "Redis", wire: Wire
) -> None:
    """A few times. Without room it waits, since it was accepted."""
    await register(redis, KEYS, "w1")
    d, answer = with_media(redis, wire), EventQueue()
    assert d.media is not None
    name, others = "a" * 64, Samples(RequestId("r2"), NOBODY, {"b" * 64: bytes(2**20)}, 60.0)
    request = inflight(job(), answer)
    request.samples = Samples(R1, NOBODY, {name: b"pixels"}, 60.0)
    await d.send(request)
    await d.media.put(others)
    d.deliver(Failed(R1, 0, "media_lost", ""))
    await asyncio.sleep(0.2)
    assert request.job.attempt == 1
    assert not request.job.worker, "there is no room"
    d.media.release(others.request)
    for attempt in (1, 2, 3):
        await until(lambda: request.job.worker)
        assert await redis.get(KEYS.media(name)) == b"pixels"
        await redis.delete(KEYS.media(name))
        d.deliver(Failed(R1, attempt, "media_lost", "gone"))
    (event,) = await events(answer)
    assert event == Failed(R1, 3, "media_lost", "gone")


async def test_media_of_a_request_that_ends_as_they_are_written_anew_are_released(redis: "Redis", wire: Wire) -> None:
    """The process would hold them for as long as it lives otherwise."""
    await register(redis, KEYS, "w1")
    d, name = with_media(redis, wire), "a" * 64
    request = inflight(job())
    request.samples = Samples(R1, NOBODY, {name: b"pixels"}, 60.0)
    await d.send(request)
    d.deliver(Failed(R1, 0, "media_lost", ""))
    assert request.retry is not None
    await d.cancel([R1])
    await asyncio.wait([request.retry])
    await until_not(lambda: redis.exists(KEYS.media(name)))
