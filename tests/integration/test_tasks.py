"""The two tasks on real engines (mock) and a real Redis, without Celery: what they emit, and what they leave behind."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace
from redis import Redis

from app.engines.base import GenerateRequest, Prefilled
from app.errors import RequestError
from app.ids import ApiId, PoolId, RequestId, WorkerId, run_id, worker_queue
from app.keys import Keys
from app.messages.celery_message import DECODE_TASK, priority_step, read_task_message
from app.messages.events import Delta, Done, Event, Failed, FirstToken, PrefillDone, decode_event_batch
from app.messages.handoff import Handoff, KvHandle
from app.messages.job import Grammar, Job, PartialOutput, Sampling, Stage, decode_job
from app.messages.lease import Lease, Worker
from app.messages.wire import encode
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.runner.runner import RunArgs, Runner
from app.settings import Settings
from app.store.connection import Command, Connection
from app.store.scripts import HAND_OVER
from app.tasks.decode import answer
from app.tasks.prefill import Computed, compute, pass_on
from tests.hostile_grammars import DEEP, rules
from tests.redis_server import another_redis
from tests.stack import wait_until

KEYS, API, R = Keys("test"), ApiId("api1"), RequestId("r1")
P, D = WorkerId("p1"), WorkerId("d1")
QUEUE = KEYS.queue(worker_queue(PoolId("decode"), D), priority_step(0))
PREFILL, DECODE = Stage("prefill", PoolId("prefill"), P, 0), Stage("decode", PoolId("decode"), D, 0)


@contextmanager
def worker(
    url: str, name: WorkerId, role: str, broker: str | None = None, *, peers: bool = False, **args: Any
) -> Iterator[Runner]:
    pool = Pool.model_validate(
        {
            "model": "mock",
            "engine": "mock",
            "role": role,
            "peers": peers,
            "max_model_len": 4096,
            "args": {"step_ms": 2.0, "total_blocks": 512, "handoff": {"lease_s": 0.3, "gb_per_s": 1.0}, **args},
        }
    )
    settings = Settings(redis_url=url, broker_url=broker, deployment="test")
    runner = Runner(create_engine(pool), name, PoolId("pool"), settings)
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
    """Places a request as `place.lua` leaves it."""
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


def queued(redis: "Redis") -> list[Any]:
    """The arguments of the decode worker's tasks."""
    return [read_task_message(raw) for raw in redis.lrange(QUEUE, 0, -1)]


def free(runner: Runner) -> bool:
    stats = runner.engine.stats()
    return stats.used_blocks == stats.lent_blocks == stats.running == 0


def start(
    runner: Runner, threads: ThreadPoolExecutor, part: Literal["prefill", "decode"], handoff: Handoff | None = None
) -> "Future[Any]":
    def work() -> Any:
        if part == "prefill":
            return runner.run(RunArgs(R, 0, lambda job: compute(runner, job, None), then=partial(pass_on, runner)))
        return runner.run(RunArgs(R, 0, lambda job: answer(runner, job, handoff)))

    return threads.submit(work)


def test_a_prefill_gives_the_first_token_and_the_decode_all_others(store_url: str, redis_db: "Redis") -> None:
    job = placed(redis_db)
    with ThreadPoolExecutor() as threads, worker(store_url, P, "prefill") as p, worker(store_url, D, "decode") as d:
        _job, handoff, returned_event = start(p, threads, "prefill").result()
        record = decode_job(redis_db.get(KEYS.request(job.run)))  # type: ignore[arg-type]
        assert queued(redis_db) == [(handoff, R, 0)]
        assert not redis_db.exists(KEYS.reservations(P)), "it is no load of the prefill worker's any more"
        assert redis_db.exists(KEYS.reservations(D))
        start(d, threads, "decode", handoff).result()
        wait_until(lambda: free(p) and free(d), "all is free")
        wait_until(lambda: not redis_db.exists(KEYS.reservations(D)), "the decode worker's account is empty")
        first, published_event, *deltas, end = events(redis_db)
        assert isinstance(first, FirstToken)
        assert published_event == returned_event
        assert isinstance(end, Done)
        assert [first.begun] == record.begun == [PartialOutput(first.delta.tokens, len(first.delta.text))]
        assert len(first.delta.tokens) + sum(len(e.tokens) for e in deltas if isinstance(e, Delta)) == 6
        assert [t.worker for t in end.timings] == [P, D]
        assert end.timings[1].pulled is not None
        assert end.timings[1].pulled.tokens == 200


@pytest.mark.parametrize(("role", "is_load"), [("prefill", True), ("both", False)])
def test_a_prompt_for_a_peer_is_none_of_the_load_and_goes_before_whole_requests(
    store_url: str, redis_db: "Redis", role: str, is_load: bool
) -> None:
    """The prompts of a worker that only prefills are its load."""
    job = placed(redis_db)
    with ThreadPoolExecutor() as threads, worker(store_url, P, role, peers=not is_load) as p:
        start(p, threads, "prefill").result()
        online, apart = (meter.read(time.monotonic()) for meter in (p.throughput.online, p.throughput.apart))
        assert (online.request_s > 0, apart.request_s > 0) == (is_load, not is_load)
        requests = [p.call(how(job, None, p.weights)) for how in (p.requests.prefill, p.requests.generation)]
        assert (requests[0].priority < requests[1].priority) == (not is_load)


def test_a_grammar_that_no_replica_has_checked_ends_its_request_and_not_the_worker(
    store_url: str, redis_db: "Redis"
) -> None:
    """Such as one of a replica of another version: a worker compiles what it has not met in a process of its own."""
    decode = [Stage("decode", PoolId("decode"), D, 0)]
    with worker(store_url, D, "both") as w1, ThreadPoolExecutor() as threads:
        for kind, text in (("grammar", rules(4000)), ("json", json.dumps(DEEP["anyOf"]))):
            grammar = Grammar(kind, text)  # type: ignore[arg-type]
            placed(redis_db, stages=decode, sampling=Sampling(max_tokens=6, grammar=grammar))
            start(w1, threads, "decode").result(60)
            failure = wait_until(lambda: [e for e in events(redis_db) if isinstance(e, Failed)], "it has ended")[-1]
            assert (failure.code, "grammar" in failure.message) == (RequestError.code, True)
        placed(redis_db, stages=decode, sampling=Sampling(max_tokens=6, grammar=Grammar("regex", "[a-z]{9}")))
        start(w1, threads, "decode").result(60)
        wait_until(lambda: any(isinstance(e, Done) for e in events(redis_db)), "it has its answer")
        assert len([e for e in events(redis_db) if isinstance(e, Failed)]) == 2
        assert free(w1)


def test_a_message_that_came_twice_is_one_answer(store_url: str, redis_db: "Redis") -> None:
    """Celery repeats a publish whose reply was lost."""
    placed(redis_db, stages=[DECODE])
    with ThreadPoolExecutor() as threads, worker(store_url, D, "decode") as d:
        twins = [start(d, threads, "decode") for _ in range(2)]
        assert [t.result() for t in twins] == [None, None]
        wait_until(lambda: any(isinstance(e, Done) for e in events(redis_db)), "its end")
        assert [e for e in events(redis_db) if isinstance(e, Failed)] == []
        assert sum(len(e.tokens) for e in events(redis_db) if isinstance(e, Delta)) == 6


def test_a_prompt_whose_message_came_again_behind_the_hop_is_computed_once(store_url: str, redis_db: "Redis") -> None:
    """A full worker may take the second message while another worker decodes, where the broker is another server."""
    placed(redis_db)
    with ThreadPoolExecutor() as threads, worker(store_url, P, "prefill") as p:
        _job, handoff, returned_event = start(p, threads, "prefill").result()
        assert start(p, threads, "prefill").result() is None
        p.call(p.emitters.drained())
        first, published_event = events(redis_db)
        assert isinstance(first, FirstToken), "the client has it once"
        assert published_event == returned_event
        assert queued(redis_db) == [(handoff, R, 0)]


def test_a_prompt_that_is_computed_when_a_drain_ends_is_handed_over(store_url: str, redis_db: "Redis") -> None:
    """Redis holds up the hop here."""
    job = placed(redis_db)
    with ThreadPoolExecutor() as threads, worker(store_url, P, "prefill") as p:
        redis_db.client_pause(5000, all=False)  # writes wait
        work = start(p, threads, "prefill")
        wait_until(lambda: p.engine.stats().lent_blocks, "the prompt is computed", 4, 0.005)
        p.give_up_after(0)
        redis_db.client_unpause()
        _job, handoff, returned_event = work.result()
        p.call(p.emitters.drained())
        assert events(redis_db)[1:] == [returned_event]
        assert queued(redis_db) == [(handoff, R, 0)]
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
        _job, handoff, _event = work.result()
        start(d, threads, "decode", handoff).result()
        wait_until(lambda: free(p) and free(d), "all is free")
        wait_until(lambda: not redis_db.exists(KEYS.reservations(P), KEYS.reservations(D)), "the accounts are empty")
        assert [type(e) for e in events(redis_db)] == [FirstToken, PrefillDone]


def test_kv_of_an_answer_that_ends_with_its_first_token_is_given_up_though_its_client_leaves(
    store_url: str, redis_db: "Redis"
) -> None:
    """Redis has not confirmed that end yet.

    The mock lends no such KV; vLLM does, of answers that stop.
    """
    job = placed(redis_db)
    with ThreadPoolExecutor() as threads, worker(store_url, P, "prefill", handoff={"lease_s": 600.0}) as p:
        prefill = p.engine.prefill  # type: ignore[attr-defined]

        async def stopping(request: GenerateRequest) -> Prefilled:
            outcome = await prefill(request)
            return replace(outcome, output=replace(outcome.output, finish="stop"))

        p.engine.prefill = stopping  # type: ignore[attr-defined]
        redis_db.client_pause(5000, all=False)
        work = start(p, threads, "prefill")
        wait_until(lambda: p.engine.stats().lent_blocks, "the prompt is computed", 4, 0.005)
        p.call(_now(lambda: p.cancel(job.run)))
        redis_db.client_unpause()
        _job, handoff, _event = work.result()
        assert queued(redis_db) == [(handoff, R, 0)], "the decode task discards it"
        p.call(p.emitters.drained())
        assert [type(e) for e in events(redis_db)] == [FirstToken, Done]


async def _now(act: Any) -> None:
    act()
    await asyncio.sleep(0)


def test_at_once_a_prefill_that_is_given_back_ends_nobodys_answer(store_url: str, redis_db: "Redis") -> None:
    """The worker that decodes has the request, and computes the prompt when nobody comes to the room."""
    job = placed(redis_db, at_once=True)
    with worker(store_url, P, "prefill") as p:
        p.call(p.hand_back(None, R, 0))
        wait_until(lambda: not redis_db.exists(KEYS.reservations(P)), "it is no load here")
        assert events(redis_db) == []
        assert redis_db.exists(KEYS.request(job.run), KEYS.reservations(D)) == 2


LENT = KvHandle("an engine", 9e9, 200, {})


def handed_on(runner: Runner, job: Job) -> None:
    """The hop of a computed prompt."""
    runner.call(pass_on(runner, Computed(job, LENT, PrefillDone(R, 0, None))))
    runner.call(runner.emitters.drained())


@pytest.mark.parametrize("refused", [True, False])
def test_a_handoff_comes_back_only_if_its_message_is_certainly_nowhere(
    store_url: str, redis_db: "Redis", tmp_path: Path, refused: bool
) -> None:
    """A connection that broke may have delivered it: then its task gives the KV up, and it can't be used again."""
    job = placed(redis_db)
    with another_redis(tmp_path) as broker, worker(store_url, P, "prefill", broker.url) as p:
        if refused:
            broker.client.config_set("maxmemory", 1)
        else:
            broker.kill()
        handed_on(p, job)
        (event,) = events(redis_db)
    if refused:
        assert event == PrefillDone(R, 0, None, LENT)
    else:
        assert isinstance(event, Failed)
        assert event.code == "handoff_failed"


@pytest.mark.parametrize("apart", [True, False])
def test_a_prompt_whose_decode_worker_has_gone_comes_back(
    store_url: str, redis_db: "Redis", tmp_path: Path, apart: bool
) -> None:
    """No message stays."""
    job = placed(redis_db)
    redis_db.delete(KEYS.worker(D))
    with another_redis(tmp_path) as broker, worker(store_url, P, "prefill", broker.url if apart else None) as p:
        handed_on(p, job)
        assert events(redis_db) == [PrefillDone(R, 0, None, LENT)]
        assert queued(redis_db) == queued(broker.client) == []
        assert not redis_db.exists(KEYS.reservations(P)), "it is no load of the prefill worker's any more"


def test_a_handoff_whose_message_may_be_somewhere_does_not_come_back(
    store_url: str, redis_db: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks when Redis has it, and the decode worker's lease ends: its task may give the KV up."""
    job = placed(redis_db)
    with worker(store_url, P, "prefill") as p:
        execute = Connection.execute

        async def breaking(self: Connection, commands: Sequence[Command]) -> list[Any]:
            replies = await execute(self, commands)
            if any(HAND_OVER in command for command in commands):
                redis_db.delete(KEYS.worker(D))
                raise ConnectionError
            return replies

        monkeypatch.setattr(Connection, "execute", breaking)
        handed_on(p, job)
        assert queued(redis_db) == [(LENT, R, 0)], "sent once"
        (event,) = events(redis_db)
        assert isinstance(event, Failed)
        assert event.code == "handoff_failed"


def test_a_message_that_its_worker_has_taken_does_not_come_back(store_url: str, redis_db: "Redis") -> None:
    """Its worker has no lease at the moment."""
    job = placed(redis_db)
    redis_db.delete(KEYS.worker(D))
    with ThreadPoolExecutor() as threads, worker(store_url, P, "prefill") as p:
        taking = threads.submit(redis_db.blpop, [QUEUE], 10)
        wait_until(lambda: redis_db.info("clients")["blocked_clients"], "somebody waits at the queue")
        handed_on(p, job)
        assert taking.result() is not None
        assert events(redis_db) == [PrefillDone(R, 0, None)]


def test_a_worker_that_ends_without_redis_gives_the_prompt_back(tmp_path: Path) -> None:
    """The worker does not wait for ever."""
    with another_redis(tmp_path) as away, worker(away.url, P, "prefill") as p:
        job = placed(away.client)
        away.kill()
        p.give_up_after(0)
        p.call(pass_on(p, Computed(job, LENT, PrefillDone(R, 0, None))))
        away.start()
        p.call(p.emitters.drained())
        with Redis.from_url(away.url) as redis:
            assert [e.code for e in events(redis) if isinstance(e, Failed)] == ["returned"]
            assert len(events(redis)) == 1


def test_the_message_of_a_hop_is_the_one_that_the_chain_would_send(store_url: str, redis_db: "Redis") -> None:
    """The message names its parent, for Flower, and waits in the list of its request's priority."""
    job = placed(redis_db, priority=-5)
    with worker(store_url, P, "prefill") as p:
        handed_on(p, job)
    (raw,) = redis_db.lrange(KEYS.queue(worker_queue(PoolId("decode"), D), priority_step(-5)), 0, -1)
    headers = json.loads(raw)["headers"]
    assert (headers["task"], headers["id"]) == (DECODE_TASK, R)
    assert headers["parent_id"] == headers["root_id"] == f"{R}.0.prefill"
    assert read_task_message(raw) == (LENT, R, 0)


def test_a_record_of_before_the_hop_is_run_on_the_rank_that_it_names(store_url: str, redis_db: "Redis") -> None:
    """The ranks of the two workers have nothing to do with each other."""
    job = placed(redis_db, stages=[replace(PREFILL, rank=1), replace(DECODE, rank=3)])
    with worker(store_url, P, "prefill") as p:
        assert p.call(p.requests.generation(job, None, "")).rank == 1
    with worker(store_url, D, "decode") as d:
        assert d.call(d.requests.generation(job, None, "")).rank == 3
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
    """The request is placed anew. The decode worker computes the prompt if the prefill worker has other weights."""
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
        _job, handoff, _event = start(p, threads, "prefill").result()
        assert handoff.weights == "v1"
        start(d, threads, "decode", handoff).result()
        d.call(d.emitters.drained())
        (end,) = [e for e in events(redis_db) if isinstance(e, Done)]
        assert "other weights" in end.timings[1].refused
        assert end.timings[1].pulled is None
        wait_until(lambda: free(p) and free(d), "all is free")
