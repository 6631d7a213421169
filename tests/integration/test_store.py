"""The scripts inside Redis."""

import asyncio
from random import Random
from typing import Any

import pytest
from msgspec.structs import astuple, replace
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.placing.placement_commands import outline
from app.ids import ApiId, RequestId, RunId, WorkerId, place_id, run_id, worker_queue
from app.keys import Keys
from app.kv.changes import Changes
from app.kv.prefix_index import KvIndex
from app.pools.schema import Pool
from app.routing.candidates import Candidate, PlaceLimits
from app.store import Wire, clock
from app.store.scripts import COMING, FORGET_LOADS, FORGET_PROMPTS, PLACE, RELEASE
from tests.integration.conftest import POOL, nobody_told, register
from tests.loads import set_load
from workers.engine.reservation_audit import recount

pytestmark = pytest.mark.both_servers

KEYS = Keys("test")
REQUEST = RequestId("chatcmpl-1")
API = b"api1"


async def place(
    redis: "Redis",
    worker: WorkerId,
    request: RequestId = REQUEST,
    hashes: bytes = b"",
    rank: int | str = 0,
    then: WorkerId | None = None,
) -> int:
    """`then` decodes what `worker` prefills."""
    run = run_id(request, 0)
    keys, values = [KEYS.request(run)], [run, b"record", 60_000, hashes, API]
    for to, tokens, pulls, message in ((worker, 100, 0, b"message"), (then, 0, 3, b"")):
        if to is not None:
            account = KEYS.reservations(to), KEYS.loads(POOL), KEYS.prefilling(to), KEYS.starting(POOL)
            keys += [KEYS.worker(to), *account, KEYS.queue(worker_queue(POOL, to))]
            values += [to, rank, 7, tokens, pulls, message]
    return int(await redis.eval(PLACE, len(keys), *keys, *values))


async def release(redis: "Redis", worker: WorkerId, what: str = "ended", request: RequestId = REQUEST) -> int:
    run = run_id(request, 0)
    return int(await redis.eval(RELEASE, 5, *KEYS.release(run, worker, POOL), run, what, worker))


async def reconcile(redis: "Redis", worker: WorkerId, *dead: str, ranks: int = 1) -> list[list[bytes]]:
    runs = [RunId(run.decode()) for run in await redis.hkeys(KEYS.reservations(worker))]
    arguments = recount(KEYS, worker, POOL, ranks, runs, [ApiId(api) for api in dead])
    reply: list[list[bytes]] = await redis.eval(*arguments)
    return reply


async def candidates(wire: Wire) -> list[Candidate]:
    return (await fleet(wire).read({POOL: []}))[POOL].candidates


def fleet(wire: Wire, **changes: Any) -> FleetReader:
    return FleetReader(wire, KEYS, {POOL: Pool.model_validate({"model": "m", "engine": "mock"} | changes)}, 10)


async def test_placing_writes_record_reservation_and_message(redis: "Redis", wire: Wire) -> None:
    """One call does all that a placement is."""
    worker = await register(redis, KEYS, "w1")
    assert await place(redis, worker) == 1
    assert await redis.get(KEYS.request(run_id(REQUEST, 0))) == b"record"
    assert await redis.hgetall(KEYS.reservations(worker)) == {run_id(REQUEST, 0).encode(): b"7,100,0,0,api1"}
    assert await redis.lrange(KEYS.queue(worker_queue(POOL, worker)), 0, -1) == [b"message"]
    (candidate,) = await candidates(wire)
    assert (candidate.requests, candidate.blocks, candidate.tokens) == (1, 7, 100)


async def test_nothing_is_written_for_a_worker_whose_lease_is_gone(redis: "Redis", wire: Wire) -> None:
    """A message in a dead worker's queue would be lost."""
    assert await place(redis, WorkerId("dead")) == 0
    assert await redis.keys("*") == []


async def test_a_placement_that_is_sent_twice_is_made_once(redis: "Redis", wire: Wire) -> None:
    """A connection that broke doesn't tell whether the first got through."""
    worker = await register(redis, KEYS, "w1")
    assert [await place(redis, worker), await place(redis, worker)] == [1, 1]
    assert await redis.llen(KEYS.queue(worker_queue(POOL, worker))) == 1
    (candidate,) = await candidates(wire)
    assert (candidate.requests, candidate.blocks, candidate.tokens) == (1, 7, 100)


async def test_releasing_twice_takes_the_load_off_once(redis: "Redis", wire: Wire) -> None:
    """A worker repeats what it isn't sure Redis got."""
    worker = await register(redis, KEYS, "w1")
    await place(redis, worker)
    await place(redis, worker, RequestId("chatcmpl-2"))
    assert [await release(redis, worker), await release(redis, worker)] == [1, 0]
    (candidate,) = await candidates(wire)
    assert (candidate.requests, candidate.blocks, candidate.tokens) == (1, 7, 100)
    assert await redis.exists(KEYS.request(run_id(REQUEST, 0))) == 0


async def test_a_snapshot_shows_live_workers_only(redis: "Redis", wire: Wire) -> None:
    """A worker lives as long as its lease does, whatever the pool's set says."""
    await register(redis, KEYS, "w1")
    await register(redis, KEYS, "w2")
    await redis.delete(KEYS.worker(WorkerId("w1")))
    assert [c.lease.worker.id for c in await candidates(wire)] == ["w2"]


async def test_a_prefill_that_is_over_is_no_load_any_more(redis: "Redis", wire: Wire) -> None:
    """The request still is: its seat and blocks stay taken."""
    worker = await register(redis, KEYS, "w1")
    await place(redis, worker, hashes=b"12345678")
    (before,) = await candidates(wire)
    assert (before.waiting, before.tokens) == (1, 100)
    assert [await release(redis, worker, "prefilled"), await release(redis, worker, "prefilled")] == [1, 1]
    (after,) = await candidates(wire)
    assert (after.requests, after.blocks, after.waiting, after.tokens) == (1, 7, 0, 0)
    assert await redis.exists(KEYS.prefilling(worker), KEYS.starting(POOL)) == 0
    assert await redis.exists(KEYS.request(run_id(REQUEST, 0))) == 1
    await release(redis, worker)
    (candidate,) = await candidates(wire)
    assert (candidate.requests, candidate.blocks, candidate.waiting, candidate.tokens) == (0, 0, 0, 0)


async def test_the_first_queued_prefill_starts_on_arrival_or_after_its_predecessor(redis: "Redis", wire: Wire) -> None:
    """The time that its prefill has run by now need not be waited for."""
    worker = await register(redis, KEYS, "w1")
    await place(redis, worker)
    await asyncio.sleep(0.1)
    await place(redis, worker, RequestId("chatcmpl-2"))
    (first,) = await candidates(wire)
    assert 0.1 <= clock.now() - first.since < 1
    await release(redis, worker, "prefilled")
    (second,) = await candidates(wire)
    assert clock.now() - second.since < 0.1
    assert second.waiting == 1


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_prefix_that_is_on_its_way_counts(redis: "Redis", wire: Wire, rank: int) -> None:
    """The prefix counts on its own rank only, until its request has a first token.

    From then on the KV events tell.
    """
    worker = await register(redis, KEYS, "w1", ranks=2)
    hashes = [bytes([i]) * 8 for i in range(20)]
    await place(redis, worker, hashes=b"".join(hashes[:12]), rank=rank)
    queries = [b"".join([*hashes[:9], b"another!"]), b"another!", b""]

    async def found() -> list[list[tuple[int, int]]]:
        view = (await fleet(wire).read({POOL: queries}))[POOL]
        options = [[m.option(i, c) for i, c in enumerate(view.candidates)] for m in view.matches]
        return [[(o.cached, o.coming) for o in of_prompt] for of_prompt in options]

    nothing = (0, 0)
    assert await found() == [[[(0, 9), nothing][rank], [nothing, (0, 9)][rank]], [nothing] * 2, [nothing] * 2]
    index = KvIndex(wire, KEYS, KEYS.cached(POOL), nobody_told)
    await index.write(Changes(False, hashes[:4], []))
    await register(redis, KEYS, "w1", ranks=2, caches=[0, index.number] if rank else [index.number, 0])
    assert (await found())[0][rank] == (4, 9)
    await release(redis, worker, "prefilled")
    assert (await found())[0][rank] == (4, 4)


async def test_an_account_that_went_wrong_is_put_right(redis: "Redis", wire: Wire) -> None:
    """A reservation whose record is gone, sums that a Redis restart left behind."""
    worker = await register(redis, KEYS, "w1")
    await place(redis, worker, hashes=b"12345678")
    await place(redis, worker, RequestId("chatcmpl-2"), hashes=b"12345678")
    await release(redis, worker, "prefilled")
    await redis.delete(KEYS.request(run_id(RequestId("chatcmpl-2"), 0)))
    await set_load(redis, KEYS.loads(POOL), worker, 77, 5, 5, 5, 5, 5, 5)
    lost_run = run_id(RequestId("chatcmpl-2"), 0).encode()
    assert await reconcile(redis, worker) == [[run_id(REQUEST, 0).encode()], [lost_run]]
    (candidate,) = await candidates(wire)
    assert (candidate.requests, candidate.blocks, candidate.tokens, candidate.waiting) == (1, 7, 0, 0)
    assert await redis.hkeys(KEYS.reservations(worker)) == [run_id(REQUEST, 0).encode()]
    assert await redis.exists(KEYS.prefilling(worker), KEYS.starting(POOL)) == 0
    assert await redis.hgetall(KEYS.load(worker)) == {b"requests.0": b"1", b"blocks.0": b"7"}, "for the version before"


async def test_what_a_dead_api_replica_had_placed_is_dropped(redis: "Redis", wire: Wire) -> None:
    """The record is dropped too; a reservation that came since the question was made stays."""
    worker = await register(redis, KEYS, "w1")
    await place(redis, worker)
    run = run_id(REQUEST, 0)
    assert await reconcile(redis, worker, "other") == [[run.encode()], []]
    arguments = recount(KEYS, worker, POOL, 1, [], [ApiId(API.decode())])
    assert await redis.eval(*arguments) == [[run.encode()], []]
    assert await reconcile(redis, worker, API.decode()) == [[], [run.encode()]]
    assert not await redis.exists(KEYS.request(run), KEYS.reservations(worker), KEYS.prefilling(worker))
    (candidate,) = await candidates(wire)
    assert (candidate.requests, candidate.blocks, candidate.tokens, candidate.waiting) == (0, 0, 0, 0)


async def test_limits_can_be_changed_at_run_time(redis: "Redis", wire: Wire) -> None:
    """The limits come with the fleet, so that every API replica has them with its next placement."""
    await register(redis, KEYS, "w1")
    reader = fleet(wire, busy={"queued_tokens": 5000})
    ((candidate,), *_) = astuple((await reader.read({POOL: []}))[POOL])
    assert candidate.limits == PlaceLimits(10, None, 5000)
    await redis.hset(KEYS.limits(POOL), mapping={"active_blocks": "0.5", "max_queued": "3"})
    ((candidate,), *_) = astuple((await reader.read({POOL: []}))[POOL])
    assert candidate.limits == PlaceLimits(3, 0.5, 5000)
    await redis.hset(KEYS.limits(POOL), "max_queued", "many")
    ((candidate,), *_) = astuple((await reader.read({POOL: []}))[POOL])
    assert candidate.limits == PlaceLimits(10, None, 5000)


async def test_a_prefill_and_its_decode_are_reserved_in_one_write(redis: "Redis", wire: Wire) -> None:
    """Only the first gets a message; the second is known to have blocks to pull and nothing to compute."""
    one, two = await register(redis, KEYS, "w1"), await register(redis, KEYS, "w2")
    assert await place(redis, one, then=two) == 1
    assert await redis.llen(KEYS.queue(worker_queue(POOL, two))) == 0
    loads = {c.lease.worker.id: (c.requests, c.tokens, c.waiting, c.pulls) for c in await candidates(wire)}
    assert loads == {one: (1, 100, 1, 0), two: (1, 0, 1, 3)}


async def test_who_has_prefilled_lets_go_and_the_record_stays(redis: "Redis", wire: Wire) -> None:
    one, two = await register(redis, KEYS, "w1"), await register(redis, KEYS, "w2")
    await place(redis, one, then=two)
    assert await release(redis, one, "left") == 1
    assert await redis.exists(KEYS.request(run_id(REQUEST, 0)))
    await release(redis, two, "prefilled")
    loads = {c.lease.worker.id: (c.requests, c.tokens, c.waiting, c.pulls) for c in await candidates(wire)}
    assert loads == {one: (0, 0, 0, 0), two: (1, 0, 0, 0)}


async def test_nothing_is_written_when_either_worker_is_gone(redis: "Redis") -> None:
    one, lost_worker = await register(redis, KEYS, "w1"), WorkerId("gone")
    before = set(await redis.keys())
    assert await place(redis, one, then=lost_worker) == 0
    assert await place(redis, lost_worker, then=one) == 0
    assert set(await redis.keys()) == before


async def test_a_recount_knows_what_is_to_be_pulled(redis: "Redis", wire: Wire) -> None:
    one, two = await register(redis, KEYS, "w1"), await register(redis, KEYS, "w2")
    await place(redis, one, then=two)
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), two)
    assert (await reconcile(redis, two))[1] == []
    assert next(c.pulls for c in await candidates(wire) if c.lease.worker.id == two) == 3


async def test_without_memory_a_request_is_refused_whole_and_another_ones_end_is_accounted(
    redis: "Redis", wire: Wire
) -> None:
    """A placement writes all or nothing; what only frees is allowed, so that the account stays true."""
    worker = await register(redis, KEYS, "w1")
    await place(redis, worker, hashes=b"12345678")
    await redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            await place(redis, worker, RequestId("chatcmpl-2"))
        assert not await redis.keys("*chatcmpl-2*")
        assert [await release(redis, worker, what) for what in ("prefilled", "ended")] == [1, 1]
    finally:
        await redis.config_set("maxmemory", 0)
    (candidate,) = await candidates(wire)
    assert (candidate.requests, candidate.blocks, candidate.waiting, candidate.tokens) == (0, 0, 0, 0)


async def test_aside_reservations_are_counted_apart(redis: "Redis", wire: Wire) -> None:
    """Nobody else sees it as load: not its request, its blocks, nor the prompt that it is still to compute."""
    worker = await register(redis, KEYS, "w1", ranks=2)
    await redis.set(KEYS.api(ApiId("api1")), "1")
    await place(redis, worker, rank="1a", hashes=b"12345678")
    await place(redis, worker, RequestId("chatcmpl-2"), rank=1)
    _, both = await candidates(wire)
    assert (both.aside, both.aside_blocks) == (1, 7)
    assert (both.requests, both.blocks, both.tokens, both.waiting) == (1, 7, 100, 1)
    await set_load(redis, KEYS.loads(POOL), place_id(worker, 0), 0, 0, 0, 0, 0, 3)
    await set_load(redis, KEYS.loads(POOL), place_id(worker, 1), *[9] * 7, 5.0)
    await reconcile(redis, worker, ranks=2)
    none, anew = await candidates(wire)
    assert replace(anew, since=both.since) == both, "counted anew it is the same"
    assert none.aside == 0
    await release(redis, worker, "prefilled")
    assert (await candidates(wire))[1].aside == 1
    await release(redis, worker)
    none, one = await candidates(wire)
    assert (one.aside, one.aside_blocks, one.requests, one.waiting) == (0, 0, 1, 1)
    assert (none.aside, none.requests) == (0, 0)


async def test_entries_of_an_older_version_are_released_and_counted(redis: "Redis", wire: Wire) -> None:
    """The versions are one without the API replica, and one without the blocks to pull."""
    worker = await register(redis, KEYS, "w1")
    for name, entry in (("a", "7,100,0,0"), ("b", "7,100,0")):
        run = run_id(RequestId(name), 0)
        await redis.hset(KEYS.reservations(worker), run, entry)
        await redis.set(KEYS.request(run), b"record")
    await reconcile(redis, worker)
    (before,) = await candidates(wire)
    assert (before.requests, before.blocks) == (2, 14)
    run = run_id(RequestId("b"), 0)
    assert await redis.eval(RELEASE, 5, *KEYS.release(run, worker, POOL), run, "ended", worker) == 1
    (after,) = await candidates(wire)
    assert (after.requests, after.blocks) == (1, 7)


async def coming(redis: "Redis", hashes: bytes, every: int = 1) -> list[tuple[str, int]]:
    """The places of waiting prompts that begin alike, and what they share of the points that they leave."""
    (pairs,) = await redis.eval(COMING, 1, KEYS.starting(POOL), every, hashes)
    return [(place.decode(), blocks) for place, blocks in zip(pairs[::2], pairs[1::2], strict=True)]


async def test_where_a_prompt_is_pulled_its_blocks_are_not_coming(redis: "Redis") -> None:
    """A request for them there meanwhile is computed before they are there."""
    prefills, decodes = await register(redis, KEYS, "w1"), await register(redis, KEYS, "w2")
    await place(redis, prefills, hashes=b"a block." * 3, then=decodes)
    assert await coming(redis, b"a block." * 3) == [("w1", 3)]


async def test_of_a_prompt_that_waits_the_points_that_it_leaves_are_coming(redis: "Redis") -> None:
    await place(redis, await register(redis, KEYS, "w1"), hashes=b"a block." * 7)
    longer, branch = b"a block." * 9, b"a block." * 5 + b"another." * 4
    assert [await coming(redis, longer, every) for every in (0, 1, 4)] == [[("w1", 7)]] * 3
    assert [await coming(redis, branch, every) for every in (0, 1, 4, 6)] == [[], [("w1", 5)], [("w1", 4)], []]


async def test_prompts_that_begin_alike_are_found_as_long_as_they_wait(redis: "Redis") -> None:
    """The newest of those that share the most; each with what exactly they share."""
    worker = await register(redis, KEYS, "w1")
    hashes = b"".join(bytes([i]) * 8 for i in range(20))
    for number in range(20):
        await place(redis, worker, RequestId(f"r{number}"), hashes[: 8 * (number + 1)])
    assert await coming(redis, hashes[:80] + b"another!" * 10) == [("w1", 10)] * 8
    for number in range(12, 20):
        assert await release(redis, worker, "prefilled", RequestId(f"r{number}")) == 1
    assert await coming(redis, hashes) == [], "older ones have given their place to newer ones"
    await place(redis, worker, RequestId("r20"), hashes[:16])
    assert await coming(redis, hashes) == [("w1", 2)]
    assert await coming(redis, b"") == await coming(redis, b"another!") == []


@pytest.mark.parametrize("blocks", [1000, 2048, 2049, 3000, 62_500])
async def test_what_is_shared_with_a_long_prompt_is_known_to_a_thousandth_of_it(redis: "Redis", blocks: int) -> None:
    """The number is never too much, and exact for a prompt no longer than twice what an outline has whole."""
    rng = Random(blocks)
    waiting = rng.randbytes(8 * blocks)
    await place(redis, await register(redis, KEYS, "w1"), hashes=outline(waiting))
    for shared_length in (1, 3, 700, 1023, 1024, 1025, 1500, 2047, 2048, 2049, 2999, 40_000, 62_499):
        if shared_length < blocks:
            for more in (0, 1, 5000):
                ((place_, match_length),) = await coming(redis, waiting[: 8 * shared_length] + rng.randbytes(8 * more))
                assert place_ == "w1"
                assert (
                    match_length == shared_length
                    if shared_length <= 1024 or blocks <= 2048
                    else shared_length - blocks / 1000 < match_length <= shared_length
                )
            assert await coming(redis, waiting[: 8 * shared_length], every=0) == []
    for every in (0, 1, 7):
        assert await coming(redis, waiting + rng.randbytes(80), every) == [("w1", blocks)]
    assert await release(redis, WorkerId("w1"), "prefilled") == 1
    assert not await redis.exists(KEYS.starting(POOL)), "nothing of its outline is left"


async def test_a_waiting_prompt_of_an_older_version_is_read_whole(redis: "Redis") -> None:
    waiting = Random(0).randbytes(8 * 5000)
    await place(redis, await register(redis, KEYS, "w1"), hashes=waiting)
    for shared_length in (1, 1024, 4099, 5000):
        assert await coming(redis, waiting[: 8 * shared_length] + b"another!" * 9) == [("w1", shared_length)]


async def test_a_round_reads_a_waiting_prompt_once_and_little_of_a_long_one(redis: "Redis") -> None:
    """The number of prompts that begin like it does not matter: Redis does nothing else meanwhile."""
    rng, worker = Random(0), await register(redis, KEYS, "w1")
    for number in range(8):
        long = b"a block." + rng.randbytes(8 * 62_499)
        await place(redis, worker, RequestId(f"r{number}"), outline(long))
    sizes = [len(value) for value in await redis.hvals(KEYS.starting(POOL))]
    assert max(sizes) < 20_000
    await redis.config_resetstat()
    queries = [b"a block." + rng.randbytes(16) for _ in range(64)]
    replies = await redis.eval(COMING, 1, KEYS.starting(POOL), 1, *queries)
    assert replies == [[b"w1", 1] * 8] * 64
    stats = await redis.info("commandstats")
    assert stats["cmdstat_hmget"]["calls"] == 2, "of the beginnings, and of the prompts that wait"


async def test_prompts_of_a_worker_that_is_gone_are_forgotten(redis: "Redis") -> None:
    worker = await register(redis, KEYS, "w1")
    for name in ("one", "two"):
        await place(redis, worker, RequestId(name), b"12345678" * 4)
    runs = await redis.hkeys(KEYS.prefilling(worker))
    assert len(await coming(redis, b"12345678" * 4)) == len(runs) == 2
    await redis.eval(FORGET_PROMPTS, 1, KEYS.starting(POOL), *runs)
    assert not await redis.exists(KEYS.starting(POOL))


async def test_waiting_prompts_live_as_long_as_the_last_of_them(redis: "Redis") -> None:
    worker, hashes = await register(redis, KEYS, "w1"), b"12345678"
    await place(redis, worker, RequestId("one"), hashes)
    await redis.pexpire(KEYS.starting(POOL), 90_000)  # as if one with a later deadline had come
    await place(redis, worker, RequestId("two"), hashes)
    assert await redis.pttl(KEYS.starting(POOL)) > 60_000


async def test_a_release_brings_back_no_load_of_a_worker_that_is_gone(redis: "Redis", wire: Wire) -> None:
    worker = await register(redis, KEYS, "w1")
    await place(redis, worker)
    await redis.eval(FORGET_LOADS, 1, KEYS.loads(POOL), worker)
    assert await release(redis, worker) == 1
    assert await redis.hgetall(KEYS.loads(POOL)) == {}
