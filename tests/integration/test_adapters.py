"""The wanted adapters in a real Redis: changes that race, what a replica knows, and who is asked to load."""

import asyncio

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.adapters.registry import AdapterRegistry
from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.event_queue import EventQueue
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.inflight import InFlight, RoutingHints
from app.dispatch.models.adapter_table import AdapterTable
from app.dispatch.models.models import load_models
from app.errors import AdapterFailed, ModelNotFound, RequestError
from app.ids import ApiId, RequestId, WorkerId
from app.keys import Keys
from app.messages.commands import LoadAdapter, decode_worker_command
from app.messages.job import Job, Sampling, decode_job
from app.messages.lease import AdapterReport, decode_lease
from app.messages.wanted import Adapter
from app.messages.wire import encode
from app.pools.schema import Pool, PoolsFile
from app.store import Wire, clock
from app.store.scripts import TELL
from tests.background import until
from tests.integration.conftest import POOL, register

KEYS, API = Keys("adapters"), ApiId("api")
POOLS = {POOL: Pool.model_validate({"model": "m", "engine": "mock"})}
SQL = Adapter("sql", 0, "m", "/x")


async def test_versions_count_up_and_are_never_given_twice(redis: "Redis") -> None:
    """Versions count up however often an adapter is swapped, removed and added again.

    The changes come from many sides at once; a Redis that forgot does not give them twice either.
    """
    registry = AdapterRegistry(redis, KEYS)
    adapter, before = await registry.add(SQL)
    assert before is None
    versions = [adapter.version]
    for _ in range(3):
        swaps = [registry.swap("sql", lambda old: replace(old, source=old.source + "x")) for _ in range(5)]
        versions += sorted(new.version for new, _ in await asyncio.gather(*swaps))
        assert (await registry.all())["sql"].version == versions[-1]
        await registry.remove("sql")
        versions.append((await registry.add(SQL))[0].version)
    assert versions == sorted(set(versions))
    await redis.flushall()
    await asyncio.sleep(0.1)
    assert (await registry.add(SQL))[0].version > versions[-1]


async def test_the_same_once_more_changes_nothing_and_another_is_refused(redis: "Redis") -> None:
    registry = AdapterRegistry(redis, KEYS)
    adapter, _ = await registry.add(SQL)
    assert await registry.add(SQL) == (adapter, adapter)
    with pytest.raises(RequestError, match="swap"):
        await registry.add(replace(SQL, source="/y"))
    assert await registry.all() == {"sql": adapter}
    await registry.remove("sql")
    for missing in (registry.remove("sql"), registry.swap("sql", lambda old: old)):
        with pytest.raises(ModelNotFound):
            await missing
    assert await registry.all() == {}


async def with_adapter(redis: "Redis", wire: Wire) -> tuple[AdapterRegistry, Adapter, AdapterTable, Dispatcher]:
    """A replica that knows of an adapter."""
    registry = AdapterRegistry(redis, KEYS)
    adapter, _ = await registry.add(SQL)
    models = load_models(PoolsFile.model_validate({"pools": {str(k): v.model_dump() for k, v in POOLS.items()}}))
    table = AdapterTable(wire, KEYS, models)
    await table.refresh()
    reader = FleetReader(wire, KEYS, POOLS, 10)
    return registry, adapter, table, Dispatcher(wire, KEYS, API, reader, POOLS, patience_s=20, adapter=table.current)


async def test_a_request_waits_for_its_adapter_and_gets_the_version_of_its_time(redis: "Redis", wire: Wire) -> None:
    """The request was for version 1.

    A worker is asked to load it, the adapter is swapped meanwhile, and the request gets version 2.
    """
    registry, old, table, d = await with_adapter(redis, wire)
    await register(redis, KEYS, "w", max_adapters=2)
    first, plain = (inflight(name, adapter) for name, adapter in (("r", old.versioned), ("p", None)))
    sending = asyncio.create_task(d.send(first))
    command = await redis.blpop([KEYS.commands(await register(redis, KEYS, "w", max_adapters=2))], timeout=5)
    assert decode_worker_command(command[1]) == LoadAdapter(old.versioned)
    await d.send(plain)  # isn't kept waiting by it
    assert plain.job.worker == "w"
    assert not sending.done()
    new, _ = await registry.swap("sql", lambda a: replace(a, source="/y"))
    await table.refresh()
    await register(redis, KEYS, "w", max_adapters=2, adapters=[old.versioned, new.versioned])
    await asyncio.wait_for(sending, 10)
    record = await redis.get(KEYS.request(first.job.run))
    assert decode_job(record).adapter == new.versioned
    await registry.remove("sql")
    await table.refresh()
    late = inflight("t", new.versioned)
    with pytest.raises(ModelNotFound, match="'sql'"):
        await d.send(late)


async def test_a_replica_that_has_not_heard_of_a_swap_places_nothing_on_the_old_version(
    redis: "Redis", wire: Wire
) -> None:
    """A worker still says that it has the old one: both hear of the swap later, and then the new one is asked for."""
    registry, old, table, d = await with_adapter(redis, wire)
    await register(redis, KEYS, "w", max_adapters=2, adapters=[old.versioned])
    before = inflight("b", old.versioned)
    await d.send(before)
    assert before.job.worker == "w"
    new, _ = await registry.swap("sql", lambda a: replace(a, source="/y"))
    late, plain = inflight("l", old.versioned), inflight("p", None)
    sending = asyncio.create_task(d.send(late))
    await until(lambda: late.attempt.held_since > 0)
    await d.send(plain)
    assert (plain.job.worker, late.job.worker, sending.done()) == ("w", "", False)
    assert not await redis.exists(KEYS.request(late.job.run))
    await register(redis, KEYS, "w", max_adapters=2, adapters=[old.versioned, new.versioned])
    await table.refresh()
    await asyncio.wait_for(sending, 10)
    assert decode_job(await redis.get(KEYS.request(late.job.run))).adapter == new.versioned
    await registry.remove("sql")
    last_send = asyncio.create_task(d.send(inflight("r", new.versioned)))
    await asyncio.sleep(0.05)
    await table.refresh()
    with pytest.raises(ModelNotFound):
        await asyncio.wait_for(last_send, 10)


async def test_one_that_nobody_can_load_is_refused_while_another_waits(redis: "Redis", wire: Wire) -> None:
    _, adapter, _, d = await with_adapter(redis, wire)
    await register(redis, KEYS, "w", max_adapters=2)
    waiting = inflight("r", adapter.versioned)
    sending = asyncio.create_task(d.send(waiting))
    await until(lambda: waiting.attempt.held_since > 0)
    # `adapters` is a field of the worker, and of the lease: the helper sets the former.
    raw = await redis.get(KEYS.worker(WorkerId("w")))
    assert raw is not None
    report = AdapterReport({adapter.versioned: "no weights"})
    await redis.set(KEYS.worker(WorkerId("w")), encode(replace(decode_lease(raw), adapters=report)), px=60_000)
    await redis.eval(TELL, 1, KEYS.changed(POOL), "w")
    with pytest.raises(AdapterFailed, match="can't be loaded"):
        await asyncio.wait_for(sending, 10)


def inflight(name: str, adapter: str | None) -> InFlight:
    job = Job(RequestId(name), 0, API, list(range(40)), Sampling(max_tokens=8), clock.now() + 60, adapter=adapter)
    return InFlight(job, ((POOL,),), EventQueue(), RoutingHints())
