"""Requests that give way, on a real engine (mock) and a real Redis: interrupted, they are what they would have been."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from redis import Redis

from app.ids import ApiId, PoolId, RequestId, WorkerId
from app.keys import Keys
from app.messages.events import Delta, Done, Event, Failed, TokenLogprob, decode_event_batch
from app.messages.job import Job, Sampling, Stage
from app.messages.wire import encode
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.runner.runner import RunArgs, Runner
from app.settings import Settings
from app.tasks.decode import answer
from tests.stack import wait_until

KEYS, API, W = Keys("test"), ApiId("api1"), WorkerId("w1")


@contextmanager
def worker(url: str, *, aside: dict[str, float] | None = None, max_running: int = 8, **args: Any) -> Iterator[Runner]:
    pool = Pool.model_validate(
        {
            "model": "mock",
            "engine": "mock",
            "max_model_len": 4096,
            "max_running": max_running,
            "aside": aside or {"step_share": 0},  # beside others nothing
            "args": {"step_ms": 2.0, "total_blocks": 512, **args},
        }
    )
    runner = Runner(create_engine(pool), W, PoolId("pool"), Settings(redis_url=url, deployment="test"), pool.aside)
    runner.load()
    try:
        yield runner
    finally:
        runner.close()


@pytest.fixture
def redis_db(valkey_url: str) -> Iterator["Redis"]:
    redis = Redis.from_url(valkey_url)
    redis.flushall()
    yield redis
    redis.close()


def placed(redis: "Redis", name: str, *, tokens: int = 60, aside: bool = True, whole: bool = False, **how: Any) -> Job:
    sampling = Sampling(**{"max_tokens": tokens, "ignore_eos": True, "seed": 7, "logprobs": 2} | how)
    prompt = list(range(300, 400))
    job = Job(
        RequestId(name), 0, API, prompt, sampling, time.time() + 60, stages=[Stage("decode", PoolId("p"), W, 0)],
        aside=aside, whole=whole,
    )  # fmt: skip
    redis.set(KEYS.request(job.run), encode(job), px=60_000)
    return job


def start(runner: Runner, threads: ThreadPoolExecutor, job: Job) -> "Future[None]":
    return threads.submit(runner.run, RunArgs(job.request, 0, lambda job: answer(runner, job, None)))


def events(redis: "Redis", name: str) -> list[Event]:
    all_events = [e for _, fields in redis.xrange(KEYS.out(API)) for e in decode_event_batch(fields[b"s"]).events]
    return [e for e in all_events if e.request == name]


Said = dict[int, tuple[str, list[int], list[TokenLogprob], Any]]


def said(redis: "Redis", name: str, choices: int = 1) -> Said:
    """The text, tokens and log probabilities of each choice of an answer, with the reason of its end."""
    *deltas, end = events(redis, name)
    assert isinstance(end, Done), end
    out: Said = {}
    for i in range(choices):
        mine = [d for d in deltas if isinstance(d, Delta) and d.index == i]
        assert [d.finish is not None for d in mine] == [False] * (len(mine) - 1) + [True]
        logprobs = [lp for d in mine for lp in d.logprobs or ()]
        out[i] = "".join(d.text for d in mine), [t for d in mine for t in d.tokens], logprobs, mine[-1].finish
    return out


def some(redis: "Redis", name: str) -> bool:
    return any(isinstance(e, Delta) for e in events(redis, name))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("how", [{}, {"n": 2}, {"stop": ("zzz",)}, {"temperature": 0.0}])
def test_an_interrupted_aside_answer_equals_an_undisturbed_one(
    valkey_url: str, redis_db: "Redis", how: dict[str, Any], whole: bool
) -> None:
    """Text, tokens and logprobs, though others came twice while it ran."""
    with ThreadPoolExecutor() as threads, worker(valkey_url, step_ms=8.0) as w:
        start(w, threads, placed(redis_db, "undisturbed", **how)).result()
        work = start(w, threads, placed(redis_db, "interrupted", whole=whole, **how))
        for i in range(2):
            wait_until(lambda: w.engine.stats().running, "it runs", every_s=0.001)
            time.sleep(0.03)
            other = placed(redis_db, f"online{i}", tokens=20, aside=False)
            start(w, threads, other).result()
            assert len(w.gates[0]) == 1
        work.result()
        w.call(w.emitters.drained())
        n = how.get("n", 1)
        assert said(redis_db, "interrupted", n) == said(redis_db, "undisturbed", n)
        assert len(said(redis_db, "interrupted", n)[0][1]) == 60
        if whole:
            assert sum(isinstance(e, Delta) for e in events(redis_db, "interrupted")) == n, "one piece a choice"
        entries = w.engine.stats().prefill_tokens
        assert entries < 100 + 3 * 100, "what it had computed was still cached"


def test_an_aside_request_waits_while_others_run(valkey_url: str, redis_db: "Redis") -> None:
    with ThreadPoolExecutor() as threads, worker(valkey_url) as w:
        online = placed(redis_db, "online", tokens=3900, aside=False)  # cancelled below
        other = start(w, threads, online)
        wait_until(lambda: w.engine.stats().running, "the other runs")
        began = time.monotonic()
        work = start(w, threads, placed(redis_db, "aside"))
        wait_until(lambda: len(w.gates[0]), "it waits")
        time.sleep(0.1)
        assert (len(w.gates[0]), w.gates[0].most, w.throughput.working.requests) == (1, 0, 1), (
            "it is no work of the engine"
        )
        wait_s = time.monotonic() - began
        w.call(_cancel(w, online))
        other.result()
        work.result()
        w.call(w.emitters.drained())
        came = [e for _, f in redis_db.xrange(KEYS.out(API)) for e in decode_event_batch(f[b"s"]).events]
        names = [e.request for e in came if isinstance(e, Delta)]  # the end of one may come in a message of both
        assert set(names) == {"online", "aside"}
        assert names == sorted(names, reverse=True), "first all of one, then all of the other"
        assert w.throughput.working.seconds > wait_s


@pytest.mark.alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize("whole", [False, True])
def test_a_long_interrupted_aside_request_is_given_back_with_its_tokens(
    valkey_url: str, redis_db: "Redis", whole: bool
) -> None:
    """Another worker may have room. What it had said is known there, since it goes out first."""
    with ThreadPoolExecutor() as threads, worker(valkey_url) as w:
        start(w, threads, placed(redis_db, "undisturbed")).result()
        work = start(w, threads, placed(redis_db, "aside", whole=whole))
        wait_until(lambda: w.engine.stats().running, "it runs", every_s=0.001)
        time.sleep(0.05)
        other = start(w, threads, placed(redis_db, "online", tokens=4000, aside=False))
        began = time.monotonic()
        work.result()
        assert 4.5 < time.monotonic() - began < 7
        w.call(w.emitters.drained())
        *deltas, end = events(redis_db, "aside")
        assert isinstance(end, Failed)
        assert end.code == "returned"
        tokens = [t for d in deltas if isinstance(d, Delta) for t in d.tokens]
        assert 0 < len(tokens) < 60
        assert said(redis_db, "undisturbed")[0][1][: len(tokens)] == tokens
        w.call(_cancel(w, placed(redis_db, "online", aside=False)))
        other.result()


async def _cancel(runner: Runner, job: Job) -> None:
    runner.cancel(job.run)


@pytest.mark.alone
def test_beside_others_a_few_go_on_and_the_last_that_came_go_first(valkey_url: str, redis_db: "Redis") -> None:
    # Another request makes a step of 2 ms longer by 0.1: five or so may stay.
    rules = {"step_share": 0.25, "prefill_share": 1.0}
    running = worker(valkey_url, aside=rules, max_running=32, step_ms_per_sequence=0.1)
    with ThreadPoolExecutor(40) as threads, running as w:
        works = [start(w, threads, placed(redis_db, f"a{i:02}", tokens=600)) for i in range(20)]
        wait_until(lambda: w.engine.stats().running == 20, "all run")
        came = [aside_job.run for aside_job in w.gates[0]._inside]
        other = start(w, threads, placed(redis_db, "online", tokens=800, aside=False))
        wait_until(lambda: 1 < w.engine.stats().running <= 1 + w.gates[0].most < 20, "most have gone", every_s=0.001)
        remaining_runs = [aside_job.run for aside_job in w.gates[0]._inside]
        stay = [a == b for a, b in zip(remaining_runs, came, strict=False)]
        assert stay[0]
        assert stay == sorted(stay, reverse=True), "behind these, one may have come back already"
        other.result()
        for work in works:
            work.result()
        w.call(w.emitters.drained())
        answers = [said(redis_db, f"a{i:02}")[0][1] for i in range(20)]
        assert all(a == answers[0] and len(a) == 600 for a in answers)


@pytest.mark.alone
def test_the_prompt_of_one_that_comes_finds_room_among_their_blocks(valkey_url: str, redis_db: "Redis") -> None:
    """The requests put aside hold most of the cache; nobody waits until one of them has ended."""
    rules = {"step_share": 1.0, "prefill_share": 1.0}
    with ThreadPoolExecutor(40) as threads, worker(valkey_url, aside=rules, total_blocks=128, max_running=32) as w:
        works = []
        for i in range(20):
            job = placed(redis_db, f"a{i}", tokens=300)
            job = replace(job, prompt=[300 + i, *job.prompt])  # nothing shared
            redis_db.set(KEYS.request(job.run), encode(job), px=60_000)
            works.append(start(w, threads, job))
        wait_until(lambda: w.engine.stats().used_blocks > 100, "they hold blocks", every_s=0.005)
        online = replace(placed(redis_db, "online", tokens=2, aside=False), prompt=list(range(500, 500 + 2000)))
        redis_db.set(KEYS.request(online.run), encode(online), px=60_000)
        began = time.monotonic()
        start(w, threads, online).result()
        assert time.monotonic() - began < 0.35
        for work in works:
            work.result()
        w.call(w.emitters.drained())
        assert all(len(said(redis_db, f"a{i}")[0][1]) == 300 for i in range(20))


def test_a_cancelled_one_leaves_the_gate(valkey_url: str, redis_db: "Redis") -> None:
    with ThreadPoolExecutor() as threads, worker(valkey_url) as w:
        online = placed(redis_db, "online", tokens=3900, aside=False)  # cancelled below
        other = start(w, threads, online)
        wait_until(lambda: w.engine.stats().running, "the other runs")
        job = placed(redis_db, "aside")
        work = start(w, threads, job)
        wait_until(lambda: len(w.gates[0]), "it waits")
        w.call(_cancel(w, job))
        work.result(timeout=10)
        assert (len(w.gates[0]), other.done()) == (0, False)
        w.call(_cancel(w, online))
        other.result()


def test_more_than_twice_the_seats_are_given_back_at_once(valkey_url: str, redis_db: "Redis") -> None:
    """Each takes a thread, of which others need some."""
    with ThreadPoolExecutor(20) as threads, worker(valkey_url, max_running=2) as w:
        works = [start(w, threads, placed(redis_db, f"a{i}", tokens=300)) for i in range(5)]
        wait_until(lambda: sum(work.done() for work in works) == 1, "one has come back", 2)
        for work in works:
            work.result()
        w.call(w.emitters.drained())
        ends = [events(redis_db, f"a{i}")[-1] for i in range(5)]
        assert sorted(type(e).__name__ for e in ends) == ["Done", "Done", "Done", "Done", "Failed"]


def test_a_whole_answer_goes_out_in_one_piece_though_it_gives_way_to_nobody(valkey_url: str, redis_db: "Redis") -> None:
    with ThreadPoolExecutor() as threads, worker(valkey_url) as w:
        for whole in (False, True):
            start(w, threads, placed(redis_db, str(whole), aside=False, whole=whole, prompt_logprobs=1)).result()
        w.call(w.emitters.drained())
        assert len(events(redis_db, "False")) > 2, "step by step, though steps that wait go together"
        assert len(events(redis_db, "True")) == 2
        assert said(redis_db, "True") == said(redis_db, "False")
        first = [next(e for e in events(redis_db, name) if isinstance(e, Delta)) for name in ("False", "True")]
        assert first[0].prompt_logprobs == first[1].prompt_logprobs is not None
        assert w.emitters._main.withheld == 60, "and it is seen that the engine works"
