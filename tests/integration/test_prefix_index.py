"""The prefix index: from an engine's events to what a snapshot says, over a real Redis and real ZMQ."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from app.dispatch.fleet.fleet_reader import FleetReader, numbers_by_beginning
from app.engines.kv_publisher import KvEvent, KvEventArgs, KvPublisher
from app.engines.mock.blocks import BlockManager, BlockTable
from app.errors import StoreDown
from app.ids import PlaceId, WorkerId, place_id
from app.keys import Keys
from app.kv.blocks import chain, point_hashes, prompt_hashes, root
from app.kv.changes import Changes
from app.kv.ledger import Ledger
from app.kv.prefix_index import KvIndex, packed
from app.messages.lease import Grid
from app.pools.schema import Pool
from app.routing.candidates import Option
from app.store import Command, Wire
from app.store.scripts import COMING, MATCH, MATCH_POINTS, WRITE_INDEX
from tests.background import beside, until
from tests.integration.conftest import POOL, nobody_told, register
from tests.loads import set_load
from workers.engine.kv_event_feed import KvEventFeed

pytestmark = pytest.mark.both_servers

KEYS, SIZE = Keys("test"), 4
INDEX, COUNT = KEYS.cached(POOL)


class LossyPublisher(KvPublisher):
    """An engine's publisher on a network that loses the next `drop` batches; replay still has them."""

    drop = 0

    def publish(self, events: list[KvEvent]) -> None:
        if self.drop:
            self.drop -= 1
            self._kept.append((self._seq, self._batch(events)))
            self._seq += 1
        else:
            super().publish(events)


@dataclass
class Cache:
    """A real block manager, its events on the wire, and the worker's feed of them."""

    blocks: BlockManager
    publisher: LossyPublisher
    prompts: list[tuple[list[int], str | None]] = field(default_factory=list)
    feed: KvEventFeed = field(init=False)
    index: KvIndex = field(init=False)

    def run(self, tokens: list[int], salt: str | None = None) -> None:
        table = BlockTable(salt)
        if self.blocks.admit(table, tokens) is not None:
            self.blocks.commit(table, tokens, len(tokens))
            self.blocks.release(table)
            self.prompts.append((tokens, salt))
        self.publish()

    def clear(self) -> None:
        self.blocks.clear()
        self.publish()

    def publish(self) -> None:
        if self.blocks.events:
            self.publisher.publish(self.blocks.events)
            self.blocks.events = []

    def held(self) -> set[bytes]:
        """Our hashes of what it holds, found without the ledger: a block is there if its prompt finds it."""
        held_blocks = set()
        for tokens, salt in self.prompts:
            table = BlockTable(salt)
            hashes = chain(root([salt] if salt else ()), tokens, SIZE)
            match_length = len(self.blocks._match(table, [*tokens, 0]))
            held_blocks |= set(hashes[:match_length])
        return held_blocks


@asynccontextmanager
async def feeding(
    wire: Wire, total: int = 12, buffer_steps: int = 1000, check_s: float = 0.1, cached: Sequence[int] = ()
) -> AsyncIterator[Cache]:
    """A feed that begins when `cached` is in the cache already."""
    publisher = LossyPublisher(KvEventArgs(buffer_steps=buffer_steps))
    cache = Cache(BlockManager(total, SIZE, record_events=True), publisher)
    if cached:
        cache.run(list(cached))
    cache.index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
    cache.feed = KvEventFeed(publisher.source, Ledger(SIZE), cache.index, check_s)
    try:
        async with beside(cache.feed.run()):
            yield cache
    finally:
        await publisher.close()


async def indexed(redis: "Redis", cache: Cache) -> set[bytes]:
    """The blocks that stand under the cache's number."""
    own = packed(cache.index.number)
    while True:
        count, entries = await redis.hget(COUNT, own), await redis.hgetall(INDEX)
        if await redis.hget(COUNT, own) == count:  # nothing was written meanwhile
            break
    own_blocks = {
        block for block, caches in entries.items() if own in {caches[i : i + 4] for i in range(0, len(caches), 4)}
    }
    assert int(count or 0) == len(own_blocks)
    return own_blocks


async def becomes(
    redis: "Redis", cache: Cache, expected: Callable[[set[bytes]], bool], what: str, within_s: float = 5
) -> None:
    async with asyncio.timeout(within_s):
        while not expected(current_blocks := await indexed(redis, cache)):
            await asyncio.sleep(0.01)
    assert expected(current_blocks), what


async def test_a_redis_that_lost_the_index_gives_no_number_twice(redis: "Redis", wire: Wire) -> None:
    """Two caches of one size would take each other's blocks for theirs otherwise."""
    numbers = set()
    for _ in range(20):
        index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
        await index.write(Changes(False, [b"12345678"], []))
        numbers.add(index.number)
        await redis.flushall()
    assert len(numbers) == 20


def blocks(most: int) -> st.SearchStrategy[list[int]]:
    """Tokens of whole blocks, of two kinds: so that prefixes are shared."""
    return st.lists(st.integers(0, 1), min_size=1, max_size=most).map(
        lambda kinds: [k for k in kinds for _ in range(4)]
    )


OPS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), blocks(8), st.sampled_from([None, "a"])),
        st.tuples(st.just("clear")),
        st.tuples(st.just("drop"), st.integers(1, 3)),
        st.tuples(st.just("forget")),
        st.tuples(st.just("pause")),
    ),
    max_size=20,
)


@given(OPS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_the_index_is_what_the_cache_holds(redis: "Redis", wire: Wire, ops: list[tuple[str, object]]) -> None:
    """The set comes to be exactly the cache after any events, lost ones and a Redis that forgot included."""
    await redis.flushall()
    async with feeding(wire) as cache:
        for name, *args in ops:
            if name == "run":
                cache.run(*args)  # type: ignore[arg-type]
            elif name == "clear":
                cache.clear()
            elif name == "drop":
                cache.publisher.drop = args[0]  # type: ignore[assignment]
            elif name == "forget":
                await redis.delete(INDEX, COUNT)
            else:
                await asyncio.sleep(0.01)
        await becomes(redis, cache, lambda found: found == cache.held(), "the cache")


async def test_the_index_is_cleared_when_lost_events_cannot_be_replayed(redis: "Redis", wire: Wire) -> None:
    """The engine's buffer is too short: all that was known goes, and what comes after counts again."""
    async with feeding(wire, buffer_steps=1) as cache:
        cache.run([1] * 12)
        await becomes(redis, cache, lambda found: len(found) == 3, "three blocks")
        cache.publisher.drop = 3
        for salt in ("x", "y", "z"):  # each evicts some
            cache.run([0] * 16, salt)
        cache.run([0, 1, 0, 1], "last")
        await becomes(
            redis, cache, lambda found: found == {chain(root(["last"]), [0, 1, 0, 1], SIZE)[0]}, "what is certain"
        )
        assert await indexed(redis, cache) <= cache.held()


async def test_a_feed_that_starts_late_learns_all(redis: "Redis", wire: Wire) -> None:
    """Events that were published before the subscription arrived are asked for."""
    async with feeding(wire, cached=[1] * 12) as cache:
        await becomes(redis, cache, lambda found: len(found) == 3 and found == cache.held(), "all three blocks")


async def test_clearing_is_seen_at_once(redis: "Redis", wire: Wire) -> None:
    """`forget` reads first what was said before; vLLM tells of the clearing only with its next step."""
    async with feeding(wire) as cache:
        cache.run([0] * 8)
        await becomes(redis, cache, lambda found: len(found) == 2, "two blocks")
        cache.publisher.drop = 1
        cache.run([1] * 12)
        await cache.feed.forget(cache.feed.clears)
        assert not await indexed(redis, cache)
        await asyncio.sleep(0.3)  # nothing that was said before the clearing comes back
        assert not await indexed(redis, cache)
        cache.blocks.clear()  # its event comes now, and then a block
        cache.run([0] * 4)
        await becomes(redis, cache, lambda found: len(found) == 1, "the block after it")


async def test_what_came_after_the_engines_own_clearing_stays(redis: "Redis", wire: Wire) -> None:
    """A request may come between the engine's reset and the index's."""
    async with feeding(wire) as cache:
        cache.run([1] * 12)
        await becomes(redis, cache, lambda found: len(found) == 3, "three blocks")
        before = cache.feed.clears
        cache.clear()
        cache.run([0] * 4)
        await cache.feed.forget(before)
        await becomes(redis, cache, lambda found: found == {chain(root(), [0] * 4, SIZE)[0]}, "the block after it")
        await asyncio.sleep(0.2)
        assert len(await indexed(redis, cache)) == 1


async def test_a_batch_that_cannot_be_read_clears_what_was_known(redis: "Redis", wire: Wire) -> None:
    """An engine of another version may have removed blocks with it. The worker goes on."""
    async with feeding(wire) as cache:
        cache.run([1] * 12)
        await becomes(redis, cache, lambda found: len(found) == 3, "three blocks")
        publisher = cache.publisher
        publisher._pub.send_multipart((b"", publisher._seq.to_bytes(8, "big"), b"\x93\x00\x91\x01\x00"))
        publisher._seq += 1
        await becomes(redis, cache, lambda found: not found, "nothing")
        cache.run([0] * 4)
        await becomes(redis, cache, lambda found: found == {chain(root(), [0] * 4, SIZE)[0]}, "what came after it")
        assert (cache.feed.left_out, cache.feed.is_blind) == (1, False)


async def test_an_engine_of_which_no_batch_can_be_read_is_known_to_tell_nothing(redis: "Redis", wire: Wire) -> None:
    """Its pool is placed by load, and shown so: not silently."""
    async with feeding(wire) as cache:
        publisher = cache.publisher
        publisher._kept.append((publisher._seq, b"\x93\x00\x91\x01\x00"))  # which the feed asks for
        publisher._seq += 1
        await until(lambda: cache.feed.is_blind, 5)
        assert not await indexed(redis, cache)


async def test_a_redis_that_forgot_is_told_again(redis: "Redis", wire: Wire) -> None:
    """Redis came back without its last second, and the engine is idle."""
    async with feeding(wire) as cache:
        cache.run([1] * 12)
        await becomes(redis, cache, lambda found: len(found) == 3, "three blocks")
        own = packed(cache.index.number)
        await redis.eval(WRITE_INDEX, 2, INDEX, COUNT, own, "remove", (await indexed(redis, cache)).pop())
        await becomes(redis, cache, lambda found: found == cache.held(), "three blocks again")


async def test_a_redis_that_forgot_as_much_as_was_removed_is_told_again(redis: "Redis", wire: Wire) -> None:
    """Each new block in a full cache takes the place of another one: the cache's size says nothing."""
    async with feeding(wire) as cache:
        cache.run([1] * 48)
        await becomes(redis, cache, lambda found: len(found) == 12 and found == cache.held(), "a full cache")
        before = {key: await redis.dump(key) for key in (INDEX, COUNT)}
        cache.run([1] * 48, "another tenant")
        await becomes(redis, cache, lambda found: len(found) == 12 and found == cache.held(), "another full cache")
        for key, dump in before.items():
            assert isinstance(dump, bytes)
            await redis.restore(key, 0, dump, replace=True)
        assert await indexed(redis, cache) != cache.held()
        await becomes(redis, cache, lambda found: found == cache.held(), "what is in the cache now")


async def test_a_write_that_redis_has_lost_is_missed_after_others(redis: "Redis", wire: Wire) -> None:
    index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
    await index.write(Changes(False, [b"12345678"], []))
    before = {key: await redis.dump(key) for key in (INDEX, COUNT)}
    await index.write(Changes(False, [b"abcdefgh"], [b"12345678"]))
    assert await index.is_whole(1)
    for key, dump in before.items():
        assert isinstance(dump, bytes)
        await redis.restore(key, 0, dump, replace=True)
    await index.write(Changes(False, [b"ABCDEFGH"], []))
    await index.write(Changes(False, [], [b"ABCDEFGH"]))
    assert not await index.is_whole(1)


async def test_what_is_gone_is_removed_though_redis_has_no_memory(redis: "Redis", wire: Wire) -> None:
    index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
    await index.write(Changes(False, [b"12345678", b"abcdefgh"], []))
    await redis.config_set("maxmemory", 1)
    try:
        await index.write(Changes(False, [], [b"12345678"]))
        assert await index.is_whole(1)
    finally:
        await redis.config_set("maxmemory", 0)


async def test_a_cache_whose_number_another_one_has_is_not_whole(redis: "Redis", wire: Wire) -> None:
    """A Redis that forgot what it gave gives it again; it has as many blocks, and they are the other's."""
    first, second = (KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told) for _ in range(2))
    await first.write(Changes(False, [b"12345678"], []))
    assert await first.is_whole(1)
    await redis.delete(INDEX, COUNT)
    await redis.set(KEYS.cache_numbers(), first.number - 1)
    await second.write(Changes(False, [b"abcdefgh"], []))
    assert second.number == first.number
    assert (await first.is_whole(1), await second.is_whole(1)) == (False, True)


async def test_lost_events_are_asked_for_at_once(redis: "Redis", wire: Wire) -> None:
    """The next event that arrives makes the feed ask, before its regular check."""
    async with feeding(wire, check_s=60) as cache:
        await asyncio.sleep(0.2)  # the subscription has arrived
        cache.publisher.drop = 1
        cache.run([1] * 12)
        cache.run([0] * 8)
        await becomes(redis, cache, lambda found: found == cache.held(), "all five")


async def test_redis_away_loses_nothing(redis: "Redis", wire: Wire) -> None:
    """Writes fail for a while; afterwards the set is whole."""
    async with feeding(wire) as cache:
        cache.run([1] * 12)
        await becomes(redis, cache, lambda found: len(found) == 3, "three blocks")
        await redis.config_set("maxmemory", 1)  # refuses writes
        cache.run([0] * 8)
        await asyncio.sleep(0.3)
        assert len(await indexed(redis, cache)) == 3
        await redis.config_set("maxmemory", 0)
        await becomes(redis, cache, lambda found: found == cache.held(), "all five")


def reader(wire: Wire, index: Wire | None = None) -> FleetReader:
    return FleetReader(wire, KEYS, {POOL: Pool(model="m", engine="mock", block_size=SIZE)}, 10, index=index)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """The blocks that some workers have cached, and prompts that begin like them."""
    cached_prompts = draw(st.lists(blocks(40), min_size=1, max_size=4))
    new_prompts = []
    for _ in range(draw(st.integers(1, 4))):
        like = draw(st.sampled_from(cached_prompts))
        new_prompts.append(like[: draw(st.integers(0, len(like)))] + draw(st.lists(st.integers(0, 1), max_size=30)))
    return cached_prompts, new_prompts


@given(prompts())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_match_is_as_long_as_the_shared_prefix(
    redis: "Redis", wire: Wire, given_: tuple[list[list[int]], list[list[int]]]
) -> None:
    """The matches are of several workers and prompts, in one call; some engines tell events, and others don't."""
    cached_prompts, new_prompts = given_
    await redis.flushall()
    names = []
    for i, tokens in enumerate(cached_prompts):
        index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
        blocks_ = list(dict.fromkeys(chain(root(), tokens, SIZE)))
        if i % 2 == 0:
            await index.write(Changes(False, blocks_, []))
        elif blocks_:
            await redis.zadd(KEYS.predicted(POOL, PlaceId(f"w{i}")), dict.fromkeys(blocks_, 9e15))
        names.append(await register(redis, KEYS, f"w{i}", kv_events=i % 2 == 0, caches=[index.number], block_size=SIZE))
    view = (await reader(wire).read({POOL: [prompt_hashes(p, SIZE) for p in new_prompts]}))[POOL]
    for prompt, matches in zip(new_prompts, view.matches, strict=True):
        for place, candidate in enumerate(view.candidates):
            there = set(chain(root(), cached_prompts[names.index(candidate.lease.worker.id)], SIZE))
            mine = chain(root(), prompt[: (len(prompt) - 1) // SIZE * SIZE] if prompt else [], SIZE)
            match_length = next((i for i, block in enumerate(mine) if block not in there), len(mine))
            assert matches.option(place, candidate) == Option(candidate, match_length, match_length)


@given(prompts(), st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_match_ends_at_the_last_point_where_the_engine_can_resume_the_prompt(
    redis: "Redis", wire: Wire, given_: tuple[list[list[int]], list[list[int]]], data: st.DataObject
) -> None:
    """The engines keep what all layers need at some points only.

    The length is counted in blocks, of which a step has two. The layers that see everything have it up to the last
    point that they share.
    """
    cached_prompts, new_prompts = given_
    await redis.flushall()
    lines, resume_points, beginnings, names = Grid(SIZE, 2 * SIZE, everywhere=False), [], [], []
    for i, tokens in enumerate(cached_prompts):
        index, beginning = (KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told) for _ in range(2))
        hashes = chain(root(), tokens, SIZE)[1::2]
        points = [h for h in dict.fromkeys(hashes) if data.draw(st.booleans())]
        resume_points.append(set(points))
        beginnings.append(set(hashes))
        if i % 2 == 0:
            await index.write(Changes(False, points, []))
            await beginning.write(Changes(False, hashes, []))
        elif points:
            await redis.zadd(KEYS.predicted(POOL, PlaceId(f"w{i}")), dict.fromkeys(points, 9e15))
        more = {"grid": lines, "block_size": SIZE}
        numbers = {"caches": [index.number], "beginnings": [beginning.number]}
        names.append(await register(redis, KEYS, f"w{i}", kv_events=i % 2 == 0, **numbers, **more))
    fleet = reader(wire)
    await fleet.refresh([POOL])
    view = (await fleet.read({POOL: [point_hashes(p, fleet.grids[POOL]) for p in new_prompts]}))[POOL]
    for prompt, matches in zip(new_prompts, view.matches, strict=True):
        for place, candidate in enumerate(view.candidates):
            number = names.index(candidate.lease.worker.id)
            mine = chain(root(), prompt[: (len(prompt) - 1) // SIZE * SIZE] if prompt else [], SIZE)
            resume_length, shared_length = (
                max((i for i in range(2, len(mine) + 1, 2) if mine[i - 1] in there[number]), default=0)
                for there in (resume_points, beginnings)
            )
            assert matches.option(place, candidate) == Option(
                candidate, resume_length, resume_length, shared_length if candidate.lease.worker.kv_events else 0
            )


async def test_a_worker_whose_blocks_differ_from_most_is_placed_by_load_alone(redis: "Redis", wire: Wire) -> None:
    """The pool's workers are being changed: their hashes are of other tokens."""
    hashes = chain(root(), [1] * 12, SIZE)
    for name, size in (("w1", SIZE), ("w2", SIZE), ("w3", 2 * SIZE)):
        index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
        await index.write(Changes(False, hashes, []))
        await register(redis, KEYS, name, caches=[index.number], grid=Grid(size, size), block_size=size)
    fleet = reader(wire)
    view = (await fleet.read({POOL: [b"".join(hashes)]}))[POOL]
    assert fleet.grids[POOL] == Grid(SIZE, SIZE)
    cached_blocks = {c.lease.worker.id: view.matches[0].option(i, c).cached for i, c in enumerate(view.candidates)}
    assert cached_blocks == {"w1": 3, "w2": 3, "w3": 0}


async def test_prompts_that_were_hashed_before_the_workers_changed_say_nothing(redis: "Redis", wire: Wire) -> None:
    """An API replica may have just started: points of another step would count for blocks that nobody has."""
    index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
    hashes = chain(root(), [1] * 12, SIZE)
    await index.write(Changes(False, hashes, []))
    await register(
        redis, KEYS, "w", caches=[index.number], block_size=SIZE, grid=Grid(SIZE, 2 * SIZE, everywhere=False)
    )
    fleet, readings = reader(wire), []
    for _ in range(2):
        view = (await fleet.read({POOL: [point_hashes([1] * 13, fleet.grids[POOL])]}))[POOL]
        readings.append((view.matches[0].option(0, view.candidates[0]).cached, view.looked_up))
    assert readings == [(0, False), (2, True)]


@pytest.mark.parametrize(("shared", "coming"), [(8, 2), (9, 0), (7, 0)])
async def test_a_prompt_waits_for_a_point_of_another_only_if_that_one_ends_there(
    redis: "Redis", wire: Wire, shared: int, coming: int
) -> None:
    """The other one has `shared` tokens of the prompt; 8 end at its last point.

    An engine keeps no other point of it.
    """
    lines = Grid(SIZE, SIZE, everywhere=False)
    worker = await register(redis, KEYS, "w", block_size=SIZE, grid=lines)
    other = [*range(9)] if shared == 8 else [*range(shared), *range(50, 64)]
    waiting = point_hashes(other, lines)
    fields = {"run": b"w\n" + waiting, waiting[:8]: b"run\n"}
    await redis.hset(KEYS.starting(POOL), mapping=fields)
    fleet = reader(wire)
    await fleet.refresh([POOL])
    view = (await fleet.read({POOL: [point_hashes([*range(20)], lines)]}))[POOL]
    assert (worker, view.matches[0].option(0, view.candidates[0]).coming) == ("w", coming)


async def test_guesses_expire(redis: "Redis", wire: Wire) -> None:
    """An engine without events may have evicted the blocks long ago."""
    worker = await register(redis, KEYS, "w1", kv_events=False, block_size=SIZE)
    hashes = chain(root(), [1] * 12, SIZE)
    key = KEYS.predicted(POOL, place_id(worker, 0))
    await redis.zadd(key, {hashes[0]: 9e15, hashes[1]: 9e15, hashes[2]: 1})
    view = (await reader(wire).read({POOL: [b"".join(hashes)]}))[POOL]
    assert view.matches[0].option(0, view.candidates[0]).cached == 2


def args(script: str, asked: Sequence[bytes]) -> list[bytes | str]:
    """The prompts as the script has them."""
    return [*asked] if script == MATCH else [numbers_by_beginning(asked), *asked]


@pytest.mark.parametrize(("script", "points", "most"), [(MATCH, 500, 2), (MATCH_POINTS, 5000, 70)])
async def test_what_prompts_of_a_round_share_is_looked_up_once_at_each_place(
    redis: "Redis", script: str, points: int, most: int
) -> None:
    """The engines are without events: otherwise a round of 64 prompts stops Redis as long as 64 rounds of one."""
    rng, places = Random(0), [KEYS.predicted(POOL, PlaceId(f"w{i}")) for i in range(10)]
    begin = [rng.randbytes(8) for _ in range(points)]
    for place in places:
        more = 0 if script == MATCH else 10_000  # of so many the points are asked for
        await redis.zadd(place, dict.fromkeys([*begin[: points // 2], *(rng.randbytes(8) for _ in range(more))], 9e15))
    queries = [b"".join(begin) + rng.randbytes(8) for _ in range(64)]
    await redis.config_resetstat()
    place_count = 0
    while place_count < len(places):
        replies = await redis.eval(
            script, 1 + len(places) - place_count, INDEX, *places[place_count:], 0, 1, *args(script, queries)
        )
        assert replies == [[[], [points // 2] * len(replies[0][1])]] * 64
        place_count += len(replies[0][1])
    stats = await redis.info("commandstats")
    search_steps = 10 if script == MATCH else 0  # steps of the search for the first prompt
    calls = sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("zscore", "zmscore"))
    assert calls <= len(places) * (most + search_steps)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("everywhere", [True, False])
async def test_many_look_ups_are_several_calls_that_tell_the_same(
    redis: "Redis", wire: Wire, everywhere: bool, apart: bool
) -> None:
    """Redis does other work between them."""
    rng, names = Random(0), [await register_guessed(redis, f"w{i}", everywhere) for i in range(12)]
    prompts_ = [b"".join(rng.randbytes(8) for _ in range(200)) for _ in range(64)]
    prompts_ += [prompt[: 8 * rng.randrange(1, 200)] + rng.randbytes(8 * 9) for prompt in prompts_[:9]] + [b""]
    depths = {name: [rng.randrange(200) for _ in prompts_] for name in names}
    there: dict[str, set[bytes]] = {}
    for name in names:
        place_blocks = [
            [prompt[8 * i : 8 * i + 8] for i in range(min(depth, len(prompt) // 8))]
            for prompt, depth in zip(prompts_, depths[name], strict=True)
        ]
        there[name] = {block for blocks_ in place_blocks for block in blocks_}
        await redis.zadd(KEYS.predicted(POOL, place_id(name, 0)), dict.fromkeys(there[name], 9e15))
    fleet = reader(wire, Wire(redis) if apart else None)
    await fleet.refresh([POOL])
    await redis.config_resetstat()
    view = (await fleet.read({POOL: prompts_}))[POOL]
    assert (await redis.info("commandstats"))["cmdstat_eval"]["calls"] > 2, "of which one asks for prompts that wait"
    for prompt, matches in zip(prompts_, view.matches, strict=True):
        for place, candidate in enumerate(view.candidates):
            place_blocks = there[candidate.lease.worker.id]
            match_length = max(
                (i for i in range(1, len(prompt) // 8 + 1) if prompt[8 * i - 8 : 8 * i] in place_blocks), default=0
            )
            assert matches.option(place, candidate).cached == match_length


@pytest.mark.parametrize(("script", "nested"), [(MATCH, True), (MATCH_POINTS, False)])
async def test_prompts_that_share_more_with_each_other_than_with_the_first_are_told_all_that_is_there(
    redis: "Redis", script: str, nested: bool
) -> None:
    """Prompts are a tree: a system prompt, then a document, then a question. A place may have any of them."""
    rng, place = Random(0), KEYS.predicted(POOL, PlaceId("w"))
    for _ in range(60):
        queries: list[list[bytes]] = [[]]
        for _ in range(rng.randrange(2, 9)):
            base = rng.choice(queries)
            suffix = [rng.randbytes(8) for _ in range(rng.choice([1, 2, 5, 60]))]
            queries.append(base[: rng.randrange(len(base) + 1)] + suffix)
        one = rng.choice(queries[1:])
        place_blocks = set(one[: rng.randrange(1, len(one) + 1)] if nested else rng.sample(one, min(len(one), 3)))
        await redis.delete(place)
        await redis.zadd(place, dict.fromkeys(place_blocks, 9e15))
        replies = await redis.eval(
            script, 2, INDEX, place, 0, 1, *args(script, [b"".join(prompt) for prompt in queries])
        )
        expected_depths = [
            max((i for i, h in enumerate(prompt, 1) if h in place_blocks), default=0) for prompt in queries
        ]
        assert [guesses for _, guesses in replies] == [[depth] for depth in expected_depths]


class LostWire(Wire):
    """A wire to an index that goes away after one answer."""

    asked = 0

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        self.asked += 1
        if self.asked > 1:
            raise StoreDown
        return await super().execute(commands)


async def test_of_an_index_that_goes_away_between_the_calls_the_first_guesses_count(redis: "Redis", wire: Wire) -> None:
    rng = Random(0)
    queries = [rng.randbytes(8 * 200) for _ in range(64)]
    for i in range(12):
        await register_guessed(redis, f"w{i:02}", everywhere=True)
        key = KEYS.predicted(POOL, place_id(WorkerId(f"w{i:02}"), 0))
        await redis.zadd(key, {prompt[j : j + 8]: 9e15 for prompt in queries for j in range(0, 800, 8)})
    view = (await reader(wire, LostWire(redis)).read({POOL: queries}))[POOL]
    depths = [[m.option(i, c).cached for i, c in enumerate(view.candidates)] for m in view.matches]
    assert depths == [depths[0]] * 64
    assert set(depths[0]) == {0, 100}


async def register_guessed(redis: "Redis", name: str, everywhere: bool) -> WorkerId:
    grid = Grid(SIZE, SIZE, everywhere=everywhere)
    return await register(redis, KEYS, name, kv_events=False, block_size=SIZE, grid=grid)


async def test_ranks_are_places_of_their_own(redis: "Redis", wire: Wire) -> None:
    """Each has its own cache and its own load."""
    hashes = chain(root(), [1] * 12, SIZE)
    index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
    await index.write(Changes(False, hashes[:2], []))
    worker = await register(redis, KEYS, "w1", ranks=2, caches=[0, index.number], block_size=SIZE)
    for rank in (0, 1):
        await set_load(redis, KEYS.loads(POOL), place_id(worker, rank), 3 - rank)
    view = (await reader(wire).read({POOL: [b"".join(hashes)]}))[POOL]
    assert [(c.rank, c.requests) for c in view.candidates] == [(0, 3), (1, 2)]
    assert [view.matches[0].option(i, c).cached for i, c in enumerate(view.candidates)] == [0, 2]


async def test_more_prompts_than_one_command_takes_are_looked_up(redis: "Redis") -> None:
    """The rounds have the requests of very many adapters' lines."""
    queries = [os.urandom(8 * 256) for _ in range(2000)]
    await redis.hset(KEYS.starting(POOL), queries[-1][:8], "run")  # type: ignore[misc]
    await redis.hset(KEYS.starting(POOL), "run", b"w1/0\n" + queries[-1])  # type: ignore[misc]
    replies = await redis.eval(COMING, 1, KEYS.starting(POOL), 1, *queries)
    assert replies == [[]] * 1999 + [[b"w1/0", 256]]
