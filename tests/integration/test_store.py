"""The scripts inside Redis."""

from redis.asyncio import Redis

from app.api.fleet import FleetReader
from app.ids import RequestId, WorkerId, run_id, worker_queue
from app.keys import Keys
from app.store import PLACE, RELEASE, Wire
from tests.integration.conftest import POOL, register

KEYS = Keys("test")
REQUEST = RequestId("chatcmpl-1")


async def place(redis: "Redis", worker: WorkerId, request: RequestId = REQUEST) -> int:
    keys = [
        KEYS.worker(worker),
        KEYS.request(run_id(request, 0)),
        KEYS.reservations(worker),
        KEYS.load(worker),
        KEYS.queue(worker_queue(POOL, worker)),
    ]
    return int(await redis.eval(PLACE, 5, *keys, request, b"record", 60_000, 7, 100, b"message"))


async def release(redis: "Redis", worker: WorkerId) -> int:
    keys = [KEYS.request(run_id(REQUEST, 0)), KEYS.reservations(worker), KEYS.load(worker)]
    return int(await redis.eval(RELEASE, 3, *keys, REQUEST))


async def test_placing_writes_record_reservation_and_message(redis: "Redis", wire: Wire) -> None:
    """One call does all that a placement is."""
    worker = await register(redis, KEYS, "w1")
    assert await place(redis, worker) == 1
    assert await redis.get(KEYS.request(run_id(REQUEST, 0))) == b"record"
    assert await redis.hgetall(KEYS.reservations(worker)) == {REQUEST.encode(): b"7,100"}
    assert await redis.lrange(KEYS.queue(worker_queue(POOL, worker)), 0, -1) == [b"message"]
    ((candidate,),) = await FleetReader(wire, KEYS).candidates([POOL])
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
    ((candidate,),) = await FleetReader(wire, KEYS).candidates([POOL])
    assert (candidate.requests, candidate.blocks, candidate.tokens) == (1, 7, 100)


async def test_releasing_twice_takes_the_load_off_once(redis: "Redis", wire: Wire) -> None:
    """A worker repeats what it isn't sure Redis got."""
    worker = await register(redis, KEYS, "w1")
    await place(redis, worker)
    await place(redis, worker, RequestId("chatcmpl-2"))
    assert [await release(redis, worker), await release(redis, worker)] == [1, 0]
    ((candidate,),) = await FleetReader(wire, KEYS).candidates([POOL])
    assert (candidate.requests, candidate.blocks, candidate.tokens) == (1, 7, 100)
    assert await redis.exists(KEYS.request(run_id(REQUEST, 0))) == 0


async def test_a_snapshot_shows_live_workers_only(redis: "Redis", wire: Wire) -> None:
    """A worker lives as long as its lease does, whatever the pool's set says."""
    await register(redis, KEYS, "w1")
    await register(redis, KEYS, "w2")
    await redis.delete(KEYS.worker(WorkerId("w1")))
    assert [c.lease.worker for c in (await FleetReader(wire, KEYS).candidates([POOL]))[0]] == ["w2"]
