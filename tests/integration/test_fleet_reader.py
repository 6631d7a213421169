"""Tests what a replica knows of its fleet without reading it all: leases that changed, and caches that are gone."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.fleet.index_sweep import IndexSweep
from app.dispatch.fleet.loads import entries
from app.ids import ApiId, PoolId, WorkerId, place_id
from app.keys import Keys
from app.kv.changes import Changes
from app.kv.prefix_index import KvIndex, packed
from app.messages.lease import decode_lease
from app.messages.wire import encode
from app.pools.schema import Pool
from app.store import Command, Wire
from app.store.scripts import FORGET_LOADS, SWEEP_INDEX, TELL
from tests.integration.conftest import POOL, nobody_told, register
from tests.leases import changed
from tests.loads import set_load

pytestmark = pytest.mark.both_servers

KEYS, SIZE = Keys("test"), 32
POOLS = {POOL: Pool(model="m", engine="mock", block_size=SIZE)}


def reader(wire: Wire) -> FleetReader:
    return FleetReader(wire, KEYS, POOLS, 10)


async def seen(fleet: FleetReader) -> dict[str, bool]:
    """The workers that the next round of placement knows, and whether they drain."""
    view = (await fleet.read({POOL: []}))[POOL]
    return {c.lease.worker.id: c.lease.draining for c in view.candidates}


async def written(redis: "Redis", worker: WorkerId, *, told: bool, **changes: bool) -> None:
    raw = await redis.get(KEYS.worker(worker))
    assert isinstance(raw, bytes)
    await redis.set(KEYS.worker(worker), encode(replace(decode_lease(raw), **changes)))
    if told:
        await redis.eval(TELL, 1, KEYS.changed(POOL), worker)


async def test_the_next_round_knows_a_lease_that_changed_came_or_went(redis: "Redis", wire: Wire) -> None:
    """The other leases are not read: a change that nobody told is seen by the next look only."""
    fleet = reader(wire)
    one, two = await register(redis, KEYS, "one"), await register(redis, KEYS, "two")
    assert await seen(fleet) == {one: False, two: False}
    await written(redis, one, told=True, draining=True)
    await written(redis, two, told=False, draining=True)
    three = await register(redis, KEYS, "three")
    assert await seen(fleet) == {one: True, two: False, three: False}
    await redis.delete(KEYS.worker(one))
    await redis.eval(TELL, 1, KEYS.changed(POOL), one)
    assert await seen(fleet) == {two: False, three: False}
    await fleet.answered(await wire.execute(fleet.questions()), 1.0)
    assert await seen(fleet) == {two: True, three: False}


async def test_pools_that_nobody_has_read_yet_are_read_together(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that may go to ten pools costs no ten round trips after a start."""
    pools = {PoolId(f"pool-{i}"): POOLS[POOL] for i in range(10)}
    fleet, trips, execute = FleetReader(wire, KEYS, pools, 10), 0, wire.execute

    async def counting(commands: Sequence[Command]) -> Sequence[Any]:
        nonlocal trips
        trips += bool(commands)
        return await execute(commands)

    monkeypatch.setattr(wire, "execute", counting)
    await fleet.read(dict.fromkeys(pools, ()))
    assert trips <= 4  # members, their leases, what is asked, and pools that had workers lately


async def test_a_worker_of_another_model_gets_no_request(redis: "Redis", wire: Wire) -> None:
    """Its pools file differs from this process's: it would answer, with another model."""
    one, two = await register(redis, KEYS, "one"), await register(redis, KEYS, "two")
    for worker, model in ((one, POOLS[POOL].model), (two, "another")):
        raw = await redis.get(KEYS.worker(worker))
        assert isinstance(raw, bytes)
        await redis.set(KEYS.worker(worker), encode(changed(decode_lease(raw), model=model)))
    assert await seen(reader(wire)) == {one: False, two: True}


async def test_of_many_processes_one_reads_all_leases_in_each_interval(redis: "Redis", wire: Wire) -> None:
    """The others read what has changed, and seldom all."""
    worker = await register(redis, KEYS, "w")
    fleets = [reader(wire) for _ in range(5)]
    for fleet in fleets:
        await fleet.answered(await wire.execute(fleet.questions()), 0.0)
    await redis.delete(KEYS.watched(POOL))
    await written(redis, worker, told=False, draining=True)
    for fleet in fleets:
        await fleet.answered(await wire.execute(fleet.questions()), 0.25)
    assert [await seen(fleet) for fleet in fleets] == [{worker: True}, *[{worker: False}] * 4]
    for fleet in fleets:
        await fleet.answered(await wire.execute(fleet.questions()), 10.0)
    assert [await seen(fleet) for fleet in fleets] == [{worker: True}] * 5


async def test_of_many_workers_one_that_dies_comes_or_goes_untold_is_found_by_the_next_look(
    redis: "Redis", wire: Wire
) -> None:
    """Leases are counted instead of read: the load that one of them reports is as old as the last reading."""
    fleet, workers = reader(wire), [await register(redis, KEYS, f"w{i}") for i in range(150)]

    async def look(now: float) -> None:
        await redis.delete(KEYS.watched(POOL))
        await fleet.answered(await wire.execute(fleet.questions()), now)

    await look(0.0)
    await written(redis, workers[0], told=False, draining=True)
    await look(0.25)
    assert await seen(fleet) == dict.fromkeys(workers, False), "all have leases: none was read"
    await redis.delete(KEYS.worker(workers[1]))
    await look(0.5)
    assert fleet.missing({}) == {workers[1]: POOL}
    assert await seen(fleet) == {w: w == workers[0] for w in workers if w != workers[1]}
    await redis.hdel(KEYS.pool(POOL), workers[1])
    fleet.removed({workers[1]: POOL})
    await redis.hset(KEYS.pool(POOL), "new", "1,1")
    await look(0.75)
    assert fleet.missing({}) == {WorkerId("new"): POOL}, "a member that nobody told of"
    await redis.hdel(KEYS.pool(POOL), "new", workers[2])
    await look(1.0)
    assert fleet.missing({}) == {}
    assert workers[2] not in await seen(fleet)


async def test_what_is_read_of_loads_is_what_scripts_have_written(redis: "Redis", wire: Wire) -> None:
    """The places come and go in any order, also after Redis came back empty.

    A reader that just began reads the same.
    """
    random, fleet = Random(5), reader(wire)
    workers = [await register(redis, KEYS, f"{i * 37:08x}", ranks=1 + i % 3) for i in range(40)]
    places = [place_id(worker, rank) for i, worker in enumerate(workers) for rank in range(1 + i % 3)]
    loads: dict[str, int] = {}
    for step in range(60):
        for place in random.sample(places, random.randrange(6)):
            if random.random() < 0.3:
                await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), place)
                loads.pop(place, None)
            else:
                loads[place] = random.randrange(100)
                await set_load(redis, KEYS.loads(POOL), place, loads[place])
        if step == 40:
            await redis.delete(KEYS.loads(POOL))
            loads = {}
        view = (await fleet.read({POOL: []}))[POOL]
        assert {place_id(c.lease.worker.id, c.rank): c.requests for c in view.candidates} == dict.fromkeys(
            places, 0
        ) | loads
        assert view.candidates == (await reader(wire).read({POOL: []}))[POOL].candidates
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), *places)
    assert await redis.exists(KEYS.loads(POOL)) == 0


async def test_changes_that_redis_forgot_are_read_anew(redis: "Redis", wire: Wire) -> None:
    """Redis came back empty, and workers have written their leases again."""
    fleet = reader(wire)
    await register(redis, KEYS, "old")
    assert set(await seen(fleet)) == {"old"}
    await redis.flushall()
    await register(redis, KEYS, "new")
    assert "new" in await seen(fleet)
    await fleet.answered(await wire.execute(fleet.questions()), 10.0)
    assert set(await seen(fleet)) == {"new"}


async def test_a_member_without_a_lease_is_missing_until_it_is_removed(redis: "Redis", wire: Wire) -> None:
    fleet = reader(wire)
    dead, awaited_worker = await register(redis, KEYS, "dead"), WorkerId("awaited")
    await redis.delete(KEYS.worker(dead))
    await fleet.answered(await wire.execute(fleet.questions()), 0.0)
    assert fleet.missing({awaited_worker: POOL}) == {dead: POOL, awaited_worker: POOL}
    fleet.removed({dead: POOL})
    assert fleet.missing({}) == {}


async def test_a_worker_of_the_wire_version_before_is_counted_by_its_own_hash(redis: "Redis", wire: Wire) -> None:
    """The worker recounts that hash each second; API replicas of that version read it of our workers."""
    worker = await register(redis, KEYS, "old", wire=1, ranks=2)
    sums = {"requests.1": 3, "blocks.1": 40, "tokens.1": 500, "waiting.1": 2, "requests.1a": 1, "since.1": 5000}
    await redis.hset(KEYS.load(worker), mapping=sums)  # type: ignore[arg-type]
    none, rank = (await reader(wire).read({POOL: []}))[POOL].candidates
    assert (none.requests, none.since) == (0, 0)
    assert (rank.requests, rank.blocks, rank.tokens, rank.waiting, rank.aside, rank.since) == (3, 40, 500, 2, 1, 5.0)


async def test_a_worker_of_the_wire_version_before_tells_no_change_and_is_read_each_round(
    redis: "Redis", wire: Wire
) -> None:
    fleet = reader(wire)
    worker, other = await register(redis, KEYS, "old", wire=1), await register(redis, KEYS, "new")
    assert await seen(fleet) == {worker: False, other: False}
    await written(redis, worker, told=False, draining=True)
    assert await seen(fleet) == {worker: True, other: False}
    await redis.delete(KEYS.worker(worker))
    assert await seen(fleet) == {other: False}


async def test_a_look_in_progress_does_not_hide_that_all_leases_have_to_be_read(redis: "Redis", wire: Wire) -> None:
    fleet = reader(wire)
    worker, other = await register(redis, KEYS, "w"), await register(redis, KEYS, "other")
    await fleet.answered(await wire.execute(fleet.questions()), 0.0)
    await written(redis, other, told=True, draining=True)
    replies = await wire.execute(fleet.questions())
    await redis.delete(KEYS.worker(worker))
    fleet.forget([POOL])  # a placement found it dead
    await fleet.answered([replies[0], None], 0.1)
    assert await seen(fleet) == {other: True}


async def test_a_round_that_goes_on_while_a_worker_leaves_misleads_no_later_one(redis: "Redis", wire: Wire) -> None:
    """Its findings about a session's places hold for the places that it knows."""
    fleet = reader(wire)
    workers = [await register(redis, KEYS, f"w{i}") for i in range(3)]
    view = (await fleet.read({POOL: []}))[POOL]
    await redis.delete(KEYS.worker(workers[0]))
    await fleet.refresh([POOL])
    view.homes["session"] = [2]
    assert (await fleet.read({POOL: []}))[POOL].homes == {}


async def filled(redis: "Redis", wire: Wire, name: str, blocks: list[bytes]) -> KvIndex:
    index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
    await index.write(Changes(False, blocks, []))
    await register(redis, KEYS, name, caches=[index.number])
    return index


async def test_caches_that_are_gone_are_swept_out_of_the_index(redis: "Redis", wire: Wire) -> None:
    """The sweep begins after a minute, in steps, by one process; the blocks that others hold stay."""
    blocks = [number.to_bytes(8, "big") for number in range(3000)]
    lost_index, stays = await filled(redis, wire, "gone", blocks), await filled(redis, wire, "stays", blocks[:1000])
    entries, counts = KEYS.cached(POOL)
    sweeps = [IndexSweep(wire, KEYS, ApiId(name), reader(wire), [POOL]) for name in ("a", "b")]
    for sweep in sweeps:
        await sweep.look(0.0)
    await redis.delete(KEYS.worker(WorkerId("gone")))
    for sweep in sweeps:
        await sweep.look(1.0)
        await sweep.look(60.0)
    assert await redis.hlen(entries) == len(blocks), "not yet: it may be a worker that just starts"
    for sweep in sweeps:
        await sweep.look(61.0)
    assert await redis.hgetall(entries) == dict.fromkeys(blocks[:1000], packed(stays.number))
    assert await redis.hkeys(counts) == [packed(stays.number), packed(stays.number) + b"w"]
    assert await stays.is_whole(1000)
    assert await redis.get(KEYS.sweeping(POOL)) == b"a"
    assert lost_index.number != stays.number


async def test_a_sweep_that_was_interrupted_shows_in_the_counts(redis: "Redis", wire: Wire) -> None:
    """A worker whose cache is not gone after all writes it anew."""
    blocks = [number.to_bytes(8, "big") for number in range(3000)]
    index = await filled(redis, wire, "w", blocks)
    entries, counts = KEYS.cached(POOL)
    await redis.eval(SWEEP_INDEX, 2, entries, counts, "0", 500, packed(index.number))
    assert await redis.hlen(entries) < len(blocks)
    assert int(await redis.hget(counts, packed(index.number)) or 0) == await redis.hlen(entries)
    assert not await index.is_whole(len(blocks))


async def test_what_is_gone_is_swept_though_redis_has_no_memory(redis: "Redis", wire: Wire) -> None:
    blocks = [number.to_bytes(8, "big") for number in range(100)]
    lost_index, stays = await filled(redis, wire, "gone", blocks), await filled(redis, wire, "stays", blocks[:50])
    await redis.delete(KEYS.worker(WorkerId("gone")))
    sweep = IndexSweep(wire, KEYS, ApiId("a"), reader(wire), [POOL])
    await redis.config_set("maxmemory", 1)
    try:
        await sweep.look(0.0)
        await sweep.look(61.0)
    finally:
        await redis.config_set("maxmemory", 0)
    assert await redis.hkeys(KEYS.cached(POOL)[1]) == [packed(stays.number), packed(stays.number) + b"w"]
    assert await stays.is_whole(50)
    assert lost_index.number != stays.number


async def test_loads_of_workers_that_are_gone_are_removed(redis: "Redis", wire: Wire) -> None:
    """A worker of another version, say, knew nothing of them."""
    worker = await register(redis, KEYS, "w", ranks=2)
    places = [place_id(worker, 0), place_id(worker, 1), place_id(worker, 2), place_id(WorkerId("gone"), 0)]
    for place in places:
        await set_load(redis, KEYS.loads(POOL), place, *[1] * 8)
    sweep = IndexSweep(wire, KEYS, ApiId("a"), reader(wire), [POOL])
    for now in (0.0, 61.0):
        await sweep.look(now)
    remaining_places = [place for group in await redis.hvals(KEYS.loads(POOL)) for place in entries(group)]
    assert set(remaining_places) == {place.encode() for place in places[:2]}


async def test_a_cleared_cache_counts_for_nothing_at_once(redis: "Redis", wire: Wire) -> None:
    """Its worker tells its new number before anything stands under it."""
    hashes = [bytes([i]) * 8 for i in range(4)]
    index = await filled(redis, wire, "w", hashes)
    fleet = reader(wire)

    async def cached() -> int:
        view = (await fleet.read({POOL: [b"".join(hashes)]}))[POOL]
        return view.matches[0].option(view.indices[place_id(WorkerId("w"), 0)], view.candidates[0]).cached

    assert await cached() == 4
    before = index.number
    await index.write(Changes(True, hashes[:2], []))
    assert index.number != before
    await register(redis, KEYS, "w", caches=[index.number])
    assert await cached() == 2
