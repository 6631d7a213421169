"""Requests that go to another cell, and come back: two deployments on one real Redis, and workers that are leases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from redis.asyncio import Redis

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.cells import Cells
from app.dispatch.fleet.cell import Cell
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight
from app.errors import NoWorker
from app.ids import HOME, CellId, RequestId
from app.keys import Keys
from app.messages.commands import Cancel
from app.messages.events import Delta
from app.messages.handoff import KvHandle
from app.messages.job import decode_job
from app.messages.wanted import Adapter
from app.messages.wire import encode
from app.pools.schema import Pool
from app.settings import Settings
from app.store import Wire, async_client
from tests.background import beside, until
from tests.integration.conftest import POOL, had_worker, register, watch_of
from tests.integration.test_dispatch import API, KEYS, inflight, job

POOLS = {POOL: Pool.model_validate({"model": "m", "engine": "mock", "busy": {"max_queued": 0}})}
NEAR, FAR = CellId("near"), CellId("far")
THERE = {NEAR: Keys("near"), FAR: Keys("far")}


class Replica:
    """An API replica with two other cells; each worker takes one request."""

    def __init__(self, redis: "Redis", wire: Wire, url: str) -> None:
        self.redis, self.wire = redis, wire
        fleet = FleetReader(wire, KEYS, POOLS, 0)
        adapter = Adapter("sql", 1, "m", "/x")
        self.dispatcher = Dispatcher(wire, KEYS, API, fleet, POOLS, patience_s=20, adapter=lambda _: adapter)
        self.watch = watch_of(wire, KEYS, self.dispatcher, POOLS)
        self.others = [Cell(name, Settings(redis_url=url, deployment=name), POOLS) for name in THERE]
        self.cells = Cells(self.watch, self.dispatcher, POOLS, self.others, lost_after_s=0.3)

    def place_of(self, request: InFlight) -> tuple[CellId, str | None]:
        return request.attempt.cell, request.job.worker

    async def room(self, name: str, *, of: CellId = HOME, **lease: Any) -> str:
        """A new worker in a cell, which the replica has seen."""
        before = self.cells.load([POOL]).room
        await register(self.redis, THERE.get(of, KEYS), name, max_running=1, **lease)
        if of != HOME and not lease:
            await until(lambda: self.cells.load([POOL]).room > before)
        return name

    async def send(self, name: str, **changes: Any) -> InFlight:
        """A request, once it is on a worker."""
        request = inflight(replace(job(name), **changes))
        async with asyncio.timeout(10):
            await self.dispatcher.send(request)
        return request


@pytest_asyncio.fixture
async def replica(redis: "Redis", wire: Wire, store_url: str) -> AsyncIterator[Replica]:
    instance = Replica(redis, wire, store_url)
    async with AsyncExitStack() as running:
        for part in instance.cells.parts:
            await running.enter_async_context(beside(part.run()))
        await until(lambda: all(state.reachable for state in instance.cells.states().values()))
        yield instance
        for cell in instance.others:
            await cell.close(API)


async def test_a_request_goes_to_the_least_used_cell_once_home_is_full(replica: Replica) -> None:
    """Its job, reservation and message are that cell's, and its tokens are delivered as if it were at home."""
    await replica.room("here")
    await replica.room("n1", of=NEAR)
    await replica.room("f1", of=FAR)
    await replica.room("f2", of=FAR)
    placements = [replica.place_of(await replica.send(f"r{i}")) for i in range(4)]
    assert placements[0] == (HOME, "here")
    assert sorted(cell for cell, _ in placements[1:]) == [FAR, FAR, NEAR]
    assert {name: state.requests for name, state in replica.cells.states().items()} == {HOME: 1, NEAR: 1, FAR: 2}
    request = next(f for f in replica.dispatcher.in_flight.values() if f.attempt.cell == NEAR)
    keys = THERE[NEAR]
    assert decode_job(await replica.redis.get(keys.request(request.job.run))).worker == "n1"
    assert await replica.redis.hkeys(keys.reservations("n1")) == [request.job.run.encode()]
    replica.dispatcher.deliver(Delta(request.job.request, 0, "x", [7]))
    assert request.out[0].tokens == [7]
    await replica.dispatcher.cancel([request.job.request])
    assert await replica.redis.lrange(keys.commands("n1"), 0, -1) == [encode(Cancel(request.job.run))]


async def test_a_request_that_is_refused_there_is_held_at_home(replica: Replica) -> None:
    """The look at the other cell was too old: home takes it as soon as it has room."""
    await replica.room("here")
    await replica.room("n1", of=NEAR)
    first = await replica.send("first")
    await replica.redis.delete(THERE[NEAR].worker("n1"))
    await register(replica.redis, THERE[NEAR], "n1", max_running=1, draining=True)
    async with beside(replica.send("second")) as second:
        await until(lambda: replica.dispatcher.placer.held == 1)
        assert NEAR in replica.dispatcher.in_flight[RequestId("second")].refused_in
        await replica.room("new")
        request: Any = await second
    assert replica.place_of(first) == (HOME, "here")
    assert replica.place_of(request) == (HOME, "new")
    assert request.job.attempt == 0


async def test_a_held_request_goes_to_a_cell_that_gets_room(replica: Replica) -> None:
    await replica.room("here")
    await replica.send("first")
    async with beside(replica.send("second")) as second:
        await until(lambda: replica.dispatcher.placer.held == 1)
        await register(replica.redis, THERE[FAR], "f1", max_running=1)
        request: Any = await second
    assert replica.place_of(request) == (FAR, "f1")


@pytest.mark.parametrize("changes", [{"adapter": "sql@1"}, {"aside": True}])
async def test_adapters_and_aside_requests_stay_at_home(replica: Replica, changes: dict[str, Any]) -> None:
    """The adapters of other cells are their own; and aside requests have time."""
    await replica.room("here", max_adapters=1, adapters=["sql@1"])
    await replica.room("n1", of=NEAR)
    await replica.send("first")
    async with beside(replica.send("second", **changes)):
        await until(lambda: replica.dispatcher.placer.held == 1)
        request = replica.dispatcher.in_flight[RequestId("second")]
        await asyncio.sleep(0.3)  # it would be gone by then
        assert request.attempt.cell == HOME
        assert not request.job.worker


async def test_a_model_without_workers_at_home_is_served_elsewhere_or_refused(replica: Replica) -> None:
    with pytest.raises(NoWorker):
        await replica.send("first")
    await replica.room("n1", of=NEAR)
    assert replica.place_of(await replica.send("second")) == (NEAR, "n1")


async def test_a_request_whose_worker_elsewhere_dies_goes_home_first(replica: Replica) -> None:
    """The request is a new attempt with its tokens so far, though others there have room.

    An event of the old attempt is dropped.
    """
    await replica.room("here")
    await replica.room("n1", of=NEAR)
    first, request = await replica.send("first"), await replica.send("second")
    await replica.room("n2", of=NEAR)
    replica.dispatcher.deliver(Delta(request.job.request, 0, "x", [7]))
    await replica.dispatcher.cancel([first.job.request])
    await replica.redis.delete(KEYS.reservations("here"), KEYS.loads(POOL))
    await replica.redis.delete(THERE[NEAR].worker("n1"))
    await until(lambda: replica.place_of(request) == (HOME, "here"))
    assert [output.tokens for output in request.job.begun] == [[7]]
    replica.dispatcher.deliver(Delta(request.job.request, 0, "y", [8]))
    assert request.out[0].tokens == [7]


async def test_computed_kv_stays_in_its_cell(replica: Replica) -> None:
    """A request that goes on elsewhere computes its prompt anew."""
    await replica.room("n1", of=NEAR)
    await had_worker(replica.redis, KEYS)
    request = inflight(job("first"))
    request.attempt = replace(request.attempt, handoff=KvHandle("engine", 1.0, 3, {}))
    await replica.dispatcher.send(request)
    assert replica.place_of(request) == (NEAR, "n1")
    assert request.attempt.handoff is None


async def test_requests_at_home_go_on_elsewhere_when_its_redis_is_lost(redis: "Redis", store_url: str) -> None:
    """The requests that go on elsewhere are only as many as find room; the others' workers go on when it is back."""
    client = async_client(store_url)
    wire = Wire(client)
    replica = Replica(redis, wire, store_url)
    async with AsyncExitStack() as running:
        for part in replica.cells.parts:
            await running.enter_async_context(beside(part.run()))
        for name in ("h1", "h2"):
            await replica.room(name)
        requests = [await replica.send(name) for name in ("first", "second")]
        await replica.room("n1", of=NEAR)
        client.connection_pool.connection_kwargs["port"] = 1
        wire.close()
        async with beside(replica.watch.run()):
            await until(
                lambda: {f.attempt.cell for f in requests} == {HOME, NEAR} and all(f.job.worker for f in requests)
            )
            await asyncio.sleep(0.5)  # two more looks
            assert sorted((f.attempt.cell, f.job.attempt) for f in requests) == [(HOME, 0), (NEAR, 1)]
        for cell in replica.others:
            await cell.close(API)
    wire.close()
    await client.aclose()
