"""Tests the audit of a worker's account, its lease, and its watchdog: a real engine (mock) and a real Redis."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import pytest
from redis import Redis

from app.ids import PoolId, RequestId, worker_queue
from app.keys import Keys
from app.messages.celery_message import task_messages
from app.messages.events import Delta, Done, Failed
from app.messages.job import Job, PartialOutput, Sampling, Timing
from app.pools.schema import Pool
from app.runner.busy_time import BusyTime
from app.runner.outcome import Outcome
from app.runner.runner import RunArgs, Runner
from app.runner.throughput import Throughput
from app.runner.token_emitters import TokenEmitters
from app.settings import Settings
from app.tasks.decode import answer
from tests.integration.test_tasks import API, DECODE, D, P, R, events, placed, redis_db, worker
from tests.stack import wait_until
from workers.engine import bootstep
from workers.engine.bootstep import EngineStep
from workers.engine.hang_watchdog import HangWatchdog
from workers.engine.lease import LeaseKeeper
from workers.engine.reservation_audit import DeafError, ReservationAudit

KEYS = Keys("test")
QUEUE = worker_queue(PoolId("decode"), D)
__all__ = ["redis_db"]


@pytest.fixture
def runner(store_url: str, redis_db: "Redis") -> Iterator[Runner]:
    redis_db.set(KEYS.api(API), "1")
    with worker(store_url, D, "both") as instance:
        yield instance


class Looks:
    """An ReservationAudit whose time is ours."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.account = ReservationAudit(runner, QUEUE)
        self._now = time.monotonic()

    def __call__(self, times: int = 1) -> None:
        for _ in range(times):
            self._now += 2
            self._runner.call(self.account.look(self._now))
        self._runner.call(self._runner.emitters.drained(5))


def codes(redis: "Redis") -> list[str]:
    return [e.code for e in events(redis) if isinstance(e, Failed)]


def reserve(redis: "Redis", job: Job, api: str = API) -> None:
    redis.hset(KEYS.reservations(D), job.run, f"14,0,0,7,{api}")


def test_a_reservation_without_a_message_is_given_back_at_the_second_audit(runner: Runner, redis_db: "Redis") -> None:
    """Its message was lost on the way; one look is not enough to know."""
    job = placed(redis_db, stages=[DECODE])
    look = Looks(runner)
    look()
    assert codes(redis_db) == []
    look()
    assert codes(redis_db) == ["returned"]
    assert not redis_db.exists(KEYS.request(job.run), KEYS.reservations(D))


def test_queued_and_prefilling_requests_are_not_given_back(runner: Runner, redis_db: "Redis") -> None:
    """The request is on its way; once its prompt is computed, it should be here at once."""
    job = placed(redis_db, stages=[DECODE])
    redis_db.lpush(KEYS.queue(QUEUE, 3), *task_messages(job, 3, None, ""))
    elsewhere = placed(redis_db, request=RequestId("r2"))
    redis_db.hset(KEYS.reservations(D), elsewhere.run, "14,0,0,7")
    look = Looks(runner)
    look(4)
    assert codes(redis_db) == []
    redis_db.delete(KEYS.queue(QUEUE, 3), KEYS.request(elsewhere.run))
    placed(redis_db, request=RequestId("r2"), prefilled=Timing(P, 1.0, 2.0, 2.0))
    look(2)
    assert sorted(codes(redis_db)) == ["returned", "returned"]


def test_running_requests_are_not_given_back(runner: Runner, redis_db: "Redis") -> None:
    placed(redis_db, stages=[DECODE], sampling=Sampling(max_tokens=200, ignore_eos=True))
    with ThreadPoolExecutor() as threads:
        running = threads.submit(lambda: runner.run(RunArgs(R, 0, lambda job: answer(runner, job, None))))
        wait_until(lambda: runner.runs, "it runs")
        Looks(runner)(3)
        running.result()
    wait_until(lambda: any(isinstance(e, Done) for e in events(redis_db)), "its end")
    assert codes(redis_db) == []


def test_what_a_dead_api_replica_had_placed_is_dropped_after_the_grace(runner: Runner, redis_db: "Redis") -> None:
    """Nothing is dropped at once: after an outage of Redis, replicas write their leases anew."""
    job = placed(redis_db, stages=[DECODE], sampling=Sampling(max_tokens=3000, ignore_eos=True))
    reserve(redis_db, job)
    redis_db.delete(KEYS.api(API))
    look = Looks(runner)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(lambda: runner.run(RunArgs(R, 0, lambda job: answer(runner, job, None))))
        wait_until(lambda: runner.runs, "it runs")
        look(2)
        assert runner.runs
        look(1)
        running.result(5)
    look()
    assert not redis_db.exists(KEYS.request(job.run), KEYS.reservations(D))
    wait_until(lambda: runner.engine.stats().used_blocks == 0, "the engine is free")
    assert codes(redis_db) == [], "nobody is told any more"


def test_a_replica_of_an_older_version_has_no_lease_and_keeps_its_requests(runner: Runner, redis_db: "Redis") -> None:
    """Its reservations don't say whose they are."""
    job = placed(redis_db, stages=[DECODE])
    redis_db.lpush(KEYS.queue(QUEUE, 3), *task_messages(job, 3, None, ""))
    Looks(runner)(4)
    assert redis_db.exists(KEYS.request(job.run), KEYS.reservations(D)) == 2


def test_a_worker_that_does_not_hear_the_broker_ends(runner: Runner, redis_db: "Redis") -> None:
    """Its load would be the least of all."""
    job = placed(redis_db, stages=[DECODE])
    redis_db.lpush(KEYS.queue(QUEUE, 3), *task_messages(job, 3, None, ""))
    look = Looks(runner)
    look(4)
    with pytest.raises(DeafError):
        look(20)


def test_of_an_answer_that_is_all_out_only_the_end_is_sent(runner: Runner, redis_db: "Redis") -> None:
    """An engine has nothing to do for it."""
    placed(redis_db, stages=[DECODE], begun=[PartialOutput([1, 2, 3, 4, 5, 6], 6, True)])
    with ThreadPoolExecutor() as threads:
        threads.submit(lambda: runner.run(RunArgs(R, 0, lambda job: answer(runner, job, None)))).result(5)
    wait_until(lambda: events(redis_db), "its end")
    assert [type(e) for e in events(redis_db)] == [Done]


def lease_keeper(runner: Runner) -> LeaseKeeper:
    async def make() -> LeaseKeeper:
        from app.engines.base import EngineInfo

        return LeaseKeeper(runner, PoolId("decode"), Pool(model="m", engine="mock"), EngineInfo(32, 512, 64, 4096))

    return runner.call(make())


def test_a_worker_that_lives_again_keeps_its_account(runner: Runner, redis_db: "Redis") -> None:
    """The process that took it for dead has set an end to its keys.

    The worker stood still, or Redis was out of its reach.
    """
    placed(redis_db, stages=[DECODE])
    lease = lease_keeper(runner)
    runner.call(lease._write())
    keys = (KEYS.reservations(D), KEYS.queue(QUEUE, 3))
    redis_db.lpush(keys[1], b"{}")
    redis_db.delete(KEYS.worker(D))
    for key in keys:
        redis_db.expire(key, 600)
    runner.call(lease._write())
    assert [redis_db.ttl(key) for key in keys] == [-1, -1]


def test_running_requests_of_a_worker_that_stood_still_are_given_back(runner: Runner, redis_db: "Redis") -> None:
    """Others have it by now, or will: its client hears nothing of a cancel."""
    placed(redis_db, stages=[DECODE], sampling=Sampling(max_tokens=3000, ignore_eos=True))
    lease = lease_keeper(runner)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(lambda: runner.run(RunArgs(R, 0, lambda job: answer(runner, job, None))))
        wait_until(lambda: any(isinstance(e, Delta) for e in events(redis_db)), "a token")
        runner.call(_call(lease.stood_still, 3.0))
        running.result(5)
    wait_until(lambda: codes(redis_db), "its end")
    assert codes(redis_db) == ["returned"]


def test_the_time_to_drain_begins_before_celery_stops_any_step(
    runner: Runner, redis_db: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery stops its pool first in some processes, and that waits for running requests."""
    placed(redis_db, stages=[DECODE], sampling=Sampling(max_tokens=3000, ignore_eos=True))
    step = EngineStep.__new__(EngineStep)
    step.runner, step.lease, step.group = runner, lease_keeper(runner), None
    monkeypatch.setattr(bootstep, "settings", Settings(drain_timeout_s=0.1))
    with ThreadPoolExecutor() as threads:
        running = threads.submit(lambda: runner.run(RunArgs(R, 0, lambda job: answer(runner, job, None))))
        wait_until(lambda: any(isinstance(e, Delta) for e in events(redis_db)), "a token")
        step.close(None)
        running.result(60)
    wait_until(lambda: events(redis_db) and not isinstance(events(redis_db)[-1], Delta), "its end")
    assert codes(redis_db) == ["returned"]


@pytest.mark.parametrize("begun_s", [0, 0.05], ids=["before-its-first-step", "while-its-record-is-read"])
def test_waiting_requests_of_a_worker_that_stood_still_are_given_back(
    runner: Runner, redis_db: "Redis", begun_s: float
) -> None:
    """Its KV elsewhere is given up."""
    job = placed(redis_db, stages=[DECODE])
    lease = lease_keeper(runner)
    given_up: list[int] = []

    async def give_up() -> None:
        given_up.append(1)

    async def stand_still() -> None:
        running = asyncio.ensure_future(
            runner._run(RunArgs(R, 0, lambda job: answer(runner, job, None), give_up), Outcome("mock"))
        )
        await asyncio.sleep(begun_s)
        lease.stood_still(3.0)
        await running

    redis_db.client_pause(500)  # milliseconds in which it answers nothing
    runner.call(stand_still())
    wait_until(lambda: codes(redis_db), "its end")
    assert codes(redis_db) == ["returned"]
    assert given_up == [1]
    assert not redis_db.exists(KEYS.request(job.run))


def test_what_a_replica_placed_that_was_only_thought_dead_goes_back_with_the_others(
    runner: Runner, redis_db: "Redis"
) -> None:
    """The machine stood still: the replica as well, and it lives again when it would have been buried."""
    job = placed(redis_db, stages=[DECODE], sampling=Sampling(max_tokens=3000, ignore_eos=True))
    reserve(redis_db, job)
    redis_db.delete(KEYS.api(API))
    look, lease = Looks(runner), lease_keeper(runner)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(lambda: runner.run(RunArgs(R, 0, lambda job: answer(runner, job, None))))
        wait_until(lambda: any(isinstance(e, Delta) for e in events(redis_db)), "a token")
        look(2)
        redis_db.set(KEYS.api(API), "1")
        look()
        runner.call(_call(lease.stood_still, 3.0))
        running.result(5)
    wait_until(lambda: codes(redis_db), "its end")
    assert codes(redis_db) == ["returned"]


async def _call(what: Any, *args: Any) -> None:
    what(*args)
    await asyncio.sleep(0)


class Dog(HangWatchdog):
    """A watchdog whose runner is what a test says."""

    def __init__(self, *, working: int = 1, store_fresh: float = 0.0, closed: bool = False) -> None:
        self.emitters = MagicMock(TokenEmitters, outputs=0, full=False)
        throughput = MagicMock(Throughput, working=MagicMock(BusyTime, requests=working))
        self.lease = MagicMock(LeaseKeeper, fresh=store_fresh)
        super().__init__(
            MagicMock(Runner, emitters=self.emitters, throughput=throughput, settings=Settings(), closed=closed),
            self.lease,
            60,
        )
        self._moved = self._turned = 0.0

    def ask(self, now: float, *, turns: bool = True, store: bool = True) -> str:
        if turns:
            self._turned = now
        if store:
            self.lease.fresh = now
        return self.hangs(now)


def test_an_engine_that_was_told_to_stand_still_does_not_hang() -> None:
    dog = Dog(closed=True)
    assert [dog.ask(t) for t in (1, 100, 1000)] == ["", "", ""]


def test_an_engine_with_work_and_without_a_token_hangs() -> None:
    dog = Dog()
    assert [dog.ask(t) for t in (1, 30, 61)] == ["", "", ""]
    assert dog.ask(62) == "no token for 60 s"
    dog.emitters.outputs = 1
    assert [dog.ask(t) for t in (63, 123)] == ["", ""]
    assert dog.ask(124)
    dog.emitters.outputs = 2
    assert [dog.ask(t) for t in (125, 185)] == ["", ""]


def test_an_idle_engine_hangs_only_if_its_loop_does() -> None:
    dog = Dog(working=0)
    assert [dog.ask(t) for t in (1, 300)] == ["", ""]
    assert dog.ask(361, turns=False) == "its event loop is blocked"


def test_an_engine_does_not_hang_because_redis_is_away() -> None:
    """Nobody could go on with what it has."""
    dog = Dog()
    assert [dog.ask(t, store=False) for t in (10, 100, 200)] == ["", "", ""]
    assert dog.ask(201) == ""
    assert dog.ask(262) == "no token for 60 s"
