"""The two tasks on real engines (mock) and a real Redis, without Celery: what they emit, and what they leave behind."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from kombu.exceptions import OperationalError
from msgspec.structs import replace
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from app.engines import create_engine
from app.ids import ApiId, PoolId, RequestId, WorkerId, run_id
from app.keys import Keys
from app.messages import (
    Delta,
    Done,
    Event,
    Failed,
    FirstToken,
    Handoff,
    Job,
    KvHandle,
    Lease,
    PartialOutput,
    PrefillDone,
    Sampling,
    Stage,
    Worker,
    decode_event_batch,
    decode_job,
    encode,
)
from app.pools import Pool
from app.runner.runner import RUNNER, Runner
from app.settings import Settings
from app.tasks.decode import answer
from app.tasks.prefill import _Prefill, compute
from tests.stack import wait_until

KEYS, API, R = Keys("test"), ApiId("api1"), RequestId("r1")
P, D = WorkerId("p1"), WorkerId("d1")
PREFILL, DECODE = Stage("prefill", PoolId("prefill"), P, 0), Stage("decode", PoolId("decode"), D, 0)


@contextmanager
def worker(url: str, name: WorkerId, role: str, **args: Any) -> Iterator[Runner]:
    pool = Pool.model_validate(
        {
            "model": "mock",
            "engine": "mock",
            "role": role,
            "max_model_len": 4096,
            "args": {"step_ms": 2.0, "total_blocks": 512, "handoff": {"lease_s": 0.3, "gb_per_s": 1.0}, **args},
        }
    )
    runner = Runner(create_engine(pool), name, PoolId("pool"), Settings(redis_url=url, deployment="test"))
    runner.load()
    try:
        yield runner
    finally:
        runner.close()


@pytest.fixture
def redis_db(store_url: str) -> Iterator["Redis"]:
    redis = Redis.from_url(store_url)
    redis.flushall()
    lease = Lease(Worker(D, PoolId("decode"), "decode", "here", 1, 32, 512, 64, 4096))
    redis.set(KEYS.worker(D), encode(lease))
    yield redis
    redis.close()


def placed(redis: "Redis", prompt: int = 200, **changes: Any) -> Job:
    """As `place.lua` leaves it."""
    job = Job(
        R,
        0,
        API,
        list(range(300, 300 + prompt)),
        Sampling(max_tokens=6, temperature=0.0),
        time.time() + 30,
    )
    job = replace(job, **{"stages": [PREFILL, DECODE]} | changes)
    redis.set(KEYS.request(job.run), encode(job), px=60_000)
    for name, value in ((P, "7,200,0,0"), (D, "14,0,0,7")):
        redis.hset(KEYS.reservations(name), job.run, value)
    return job


def events(redis: "Redis") -> list[Event]:
    return [e for _, fields in redis.xrange(KEYS.out(API)) for e in decode_event_batch(fields[b"s"]).events]


def free(runner: Runner) -> bool:
    stats = runner.engine.stats()
    return stats.used_blocks == stats.lent_blocks == stats.running == 0


def start(
    runner: Runner, threads: ThreadPoolExecutor, part: Literal["prefill", "decode"], handoff: Handoff | None = None
) -> "Future[Any]":
    def work() -> Any:
        if part == "prefill":
            return runner.run(R, 0, lambda job: compute(runner, job, None))
        return runner.run(R, 0, lambda job: answer(runner, job, handoff))

    return threads.submit(work)


def test_a_prefill_gives_the_first_token_and_the_decode_all_others(store_url: str, redis_db: "Redis") -> None:
    job = placed(redis_db)
    with ThreadPoolExecutor() as threads, worker(store_url, P, "prefill") as p, worker(store_url, D, "decode") as d:
        _job, lent, handed = start(p, threads, "prefill").result()
        record = decode_job(redis_db.get(KEYS.request(job.run)))  # type: ignore[arg-type]
        assert isinstance(handed, PrefillDone)
        assert not redis_db.exists(KEYS.reservations(P)), "it is no load of the prefill worker's any more"
        assert redis_db.exists(KEYS.reservations(D))
        start(d, threads, "decode", lent).result()
        wait_until(lambda: free(p) and free(d), "all is free")
        wait_until(lambda: not redis_db.exists(KEYS.reservations(D)), "the decode worker's account is empty")
        first, *deltas, done = events(redis_db)
        assert isinstance(first, FirstToken)
        assert isinstance(done, Done)
        assert [first.begun] == record.begun == [PartialOutput(first.delta.tokens, len(first.delta.text))]
        assert len(first.delta.tokens) + sum(len(e.tokens) for e in deltas if isinstance(e, Delta)) == 6
        assert [t.worker for t in done.timings] == [P, D]
        assert done.timings[1].pulled is not None
        assert done.timings[1].pulled.tokens == 200


def test_a_message_that_came_twice_is_one_answer(store_url: str, redis_db: "Redis") -> None:
    """Celery repeats a publish whose reply was lost."""
    placed(redis_db, stages=[DECODE])
    with ThreadPoolExecutor() as threads, worker(store_url, D, "decode") as d:
        twins = [start(d, threads, "decode") for _ in range(2)]
        assert [t.result() for t in twins] == [None, None]
        wait_until(lambda: any(isinstance(e, Done) for e in events(redis_db)), "its end")
        assert [e for e in events(redis_db) if isinstance(e, Failed)] == []
        assert sum(len(e.tokens) for e in events(redis_db) if isinstance(e, Delta)) == 6


def test_a_prefill_that_ends_in_a_drain_is_given_back_or_handed_over(store_url: str, redis_db: "Redis") -> None:
    """Redis holds up the hop here. redis-py may swallow a cancellation that comes with a reply: then it goes on."""
    job = placed(redis_db)
    with ThreadPoolExecutor() as threads, worker(store_url, P, "prefill") as p:
        redis_db.client_pause(5000, all=False)  # writes wait
        work = start(p, threads, "prefill")
        wait_until(lambda: p.engine.stats().lent_blocks, "the prompt is computed", 4, 0.005)
        p.give_up_after(0)
        redis_db.client_unpause()
        found = work.result()
        p.call(p.emitters.drained())
        codes = [e.code for e in events(redis_db) if isinstance(e, Failed)]
        if found is None:
            assert codes == ["returned"]
        else:
            assert codes == []
            assert isinstance(found[1], KvHandle)
            assert redis_db.exists(KEYS.request(job.run)), "the decode task finds what to do"


def test_a_client_that_leaves_at_the_hop_leaves_nothing_behind(store_url: str, redis_db: "Redis") -> None:
    """The chain goes on; the decode task finds no record, and gives the KV up."""
    job = placed(redis_db)
    with ThreadPoolExecutor() as threads, worker(store_url, P, "prefill") as p, worker(store_url, D, "decode") as d:
        redis_db.client_pause(5000, all=False)
        work = start(p, threads, "prefill")
        wait_until(lambda: p.engine.stats().lent_blocks, "the prompt is computed", 4, 0.005)
        p.call(_now(lambda: p.cancel(job.run)))
        redis_db.client_unpause()
        redis_db.delete(KEYS.request(job.run))
        _job, lent, _handed = work.result()
        start(d, threads, "decode", lent).result()
        wait_until(lambda: free(p) and free(d), "all is free")
        wait_until(lambda: not redis_db.exists(KEYS.reservations(P), KEYS.reservations(D)), "the accounts are empty")
        assert [type(e) for e in events(redis_db)] == [FirstToken]


async def _now(act: Any) -> None:
    act()
    await asyncio.sleep(0)


def test_at_once_a_prefill_that_is_given_back_ends_nobodys_answer(store_url: str, redis_db: "Redis") -> None:
    """Who decodes has the request, and computes the prompt when nobody comes to the room."""
    job = placed(redis_db, at_once=True)
    with worker(store_url, P, "prefill") as p:
        p.call(p.hand_back(None, R, 0))
        wait_until(lambda: not redis_db.exists(KEYS.reservations(P)), "it is no load here")
        assert events(redis_db) == []
        assert redis_db.exists(KEYS.request(job.run), KEYS.reservations(D)) == 2


@pytest.mark.parametrize(
    ("cause", "returned"),
    [(OutOfMemoryError("full"), True), (RedisConnectionError("gone"), False)],
)
def test_a_handoff_comes_back_only_if_its_message_is_certainly_nowhere(
    store_url: str, redis_db: "Redis", monkeypatch: pytest.MonkeyPatch, cause: Exception, returned: bool
) -> None:
    """A connection that broke may have delivered it: then its task gives the KV up, and it can't be used again."""
    job = placed(redis_db)
    lent = KvHandle("an engine", 9e9, 200, {})
    with worker(store_url, P, "prefill") as p:
        monkeypatch.setattr(RUNNER, "_value", p)
        task = _Prefill()
        task.enqueuing["t1"] = job, lent, PrefillDone(R, 0, None)
        failure = OperationalError(str(cause))
        failure.__cause__ = cause
        task.on_failure(failure, "t1", (), {}, None)
        (event,) = wait_until(lambda: events(redis_db), "the API replica is told")
    assert not task.enqueuing
    if returned:
        assert event == PrefillDone(R, 0, None, lent)
    else:
        assert isinstance(event, Failed)
        assert event.code == "handoff_failed"


def test_a_record_of_before_the_hop_is_run_on_the_rank_that_it_names(store_url: str, redis_db: "Redis") -> None:
    """The ranks of the two workers have nothing to do with each other."""
    job = placed(redis_db, stages=[replace(PREFILL, rank=1), replace(DECODE, rank=3)])
    with worker(store_url, P, "prefill") as p:
        assert p.request(job).rank == 1
    with worker(store_url, D, "decode") as d:
        assert d.request(job).rank == 3
    assert run_id(R, 0) == job.run


@pytest.mark.parametrize(
    ("part", "weights", "closed", "code"),
    [
        ("decode", "v2", False, "returned"),
        ("decode", "v1", True, "returned"),
        ("prefill", "v2", False, "handoff_failed"),
        ("prefill", "v1", True, "returned"),
    ],
)
def test_what_needs_other_weights_or_comes_to_a_closed_worker_does_not_begin(
    store_url: str, redis_db: "Redis", part: Literal["prefill", "decode"], weights: str, closed: bool, code: str
) -> None:
    """It is placed anew. Without the other weights, the worker that decodes computes the prompt."""
    placed(redis_db, weights="v1")
    name = P if part == "prefill" else D
    with ThreadPoolExecutor() as threads, worker(store_url, name, part) as runner:
        runner.weights, runner.closed = weights, closed
        start(runner, threads, part).result()
        runner.call(runner.emitters.drained())
        assert [e.code for e in events(redis_db) if isinstance(e, Failed)] == [code]
        assert len(events(redis_db)) == 1


def test_deltas_name_the_weights_that_made_them(store_url: str, redis_db: "Redis") -> None:
    placed(redis_db, stages=[DECODE], weights="v1")
    with ThreadPoolExecutor() as threads, worker(store_url, D, "decode") as d:
        d.weights = "v1"
        start(d, threads, "decode").result()
        d.call(d.emitters.drained())
        assert {e.weights for e in events(redis_db) if isinstance(e, Delta)} == {"v1"}


def test_kv_of_other_weights_is_refused_and_the_prompt_computed(store_url: str, redis_db: "Redis") -> None:
    """Its handoff may come when the decode worker is another one by now."""
    placed(redis_db)
    with ThreadPoolExecutor() as threads, worker(store_url, P, "prefill") as p, worker(store_url, D, "decode") as d:
        p.weights = "v1"
        _job, lent, _handed = start(p, threads, "prefill").result()
        assert lent.weights == "v1"
        start(d, threads, "decode", lent).result()
        d.call(d.emitters.drained())
        (done,) = [e for e in events(redis_db) if isinstance(e, Done)]
        assert "other weights" in done.timings[1].refused
        assert done.timings[1].pulled is None
        wait_until(lambda: free(p) and free(d), "all is free")
