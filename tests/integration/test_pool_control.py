"""Commands to a pool's workers, and what becomes of requests meanwhile: against a real Redis."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.fleet import pool_control
from app.dispatch.fleet.fleet_reader import FleetReader
from app.dispatch.fleet.pool_control import PoolControl
from app.dispatch.inflight import InFlight
from app.errors import NoWorker, PoolAsleep, PoolBusy, WeightsChanged
from app.ids import WorkerId
from app.kv.blocks import prompt_hashes
from app.messages.commands import Reply, SetWeights, Wake, decode_worker_command
from app.messages.events import Delta, Failed
from app.messages.job import decode_job
from app.messages.lease import EngineState
from app.messages.wire import encode
from app.pools.schema import Pool
from app.store import Wire
from tests.background import beside, until_not
from tests.integration.conftest import POOL, register
from tests.integration.test_dispatch import API, KEYS, inflight, job

A, B = WorkerId("a"), WorkerId("b")
ASLEEP = {"draining": True, "state": EngineState(asleep=1)}


def control(redis: "Redis", wire: Wire) -> PoolControl:
    return PoolControl(redis, KEYS, FleetReader(wire, KEYS, {POOL: Pool(model="m", engine="mock")}, 100))


async def obeys(redis: "Redis", worker: WorkerId, does: Callable[[Any], Awaitable[str]]) -> None:
    """A worker that answers each command with what `does` returns: the reason of a refusal."""
    while True:
        _, raw = await redis.blpop([KEYS.commands(worker)])  # type: ignore[misc]
        command = decode_worker_command(raw)
        reason = await does(command)
        await redis.rpush(KEYS.reply(command.id), encode(Reply(worker, not reason, reason)))  # type: ignore[union-attr]


async def test_each_worker_says_what_it_did_or_has_gone(redis: "Redis", wire: Wire) -> None:
    for worker in (A, B):
        await register(redis, KEYS, worker)
    lost_worker = WorkerId("gone")

    async def done(_: Any) -> str:
        return ""

    async def refused(_: Any) -> str:
        return "no"

    async with beside(obeys(redis, A, done)), beside(obeys(redis, B, refused)):
        outcome = await control(redis, wire).order([A, B, lost_worker], Wake, 20)
    assert outcome == {A: "", B: "no", lost_worker: "it has gone"}


async def test_a_roll_stops_at_the_first_worker_that_fails(redis: "Redis", wire: Wire) -> None:
    versions: list[str] = []
    for worker in (A, B):
        await register(redis, KEYS, worker)

    async def refuses(command: SetWeights) -> str:
        versions.append(command.version)
        return "broken"

    async with beside(obeys(redis, A, refuses)), beside(obeys(redis, B, refuses)):
        outcome = await control(redis, wire).roll(
            POOL, "v1", lambda i: SetWeights(i, "v1", None, "wait"), 20, rolling=True, keep_awake=None
        )
    assert outcome == {A: "broken"}
    assert versions == ["v1"]


async def test_only_one_changes_a_pool(redis: "Redis", wire: Wire) -> None:
    one = control(redis, wire)
    async with one.alone(POOL):
        with pytest.raises(PoolBusy):
            async with one.alone(POOL):
                pass
    async with one.alone(POOL):
        pass
    assert not await redis.exists(KEYS.pool_lock(POOL))


async def test_one_that_was_away_too_long_does_not_take_the_lock_back(
    redis: "Redis", wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_control, "_RENEW_S", 0.01)
    async with control(redis, wire).alone(POOL):
        await redis.set(KEYS.pool_lock(POOL), "another", ex=1)
        await asyncio.sleep(0.1)
        assert await redis.get(KEYS.pool_lock(POOL)) == b"another"
        assert await redis.ttl(KEYS.pool_lock(POOL)) <= 1
    assert await redis.get(KEYS.pool_lock(POOL)) == b"another"


async def test_what_several_want_at_once_is_all_wanted(redis: "Redis", wire: Wire) -> None:
    """Requests that wake the pool meet an operator who gives it other weights."""
    one, other = control(redis, wire), control(redis, wire)
    for turn in range(1, 21):
        await asyncio.gather(one.want(POOL, weights=f"v{turn}"), other.want(POOL, keep_awake=turn))
        state = await one.wanted(POOL)
        assert (state.weights, state.keep_awake) == (f"v{turn}", turn)


async def test_requests_wake_the_worker_that_wakes_soonest_and_once(redis: "Redis", wire: Wire) -> None:
    """Its successor is to be awake, too."""
    await register(redis, KEYS, A, draining=True, state=EngineState(asleep=2))
    await register(redis, KEYS, B, **ASLEEP)
    woken_workers: list[WorkerId] = []
    one = control(redis, wire)
    await one.want(POOL, sleep=1)

    def wakes(worker: WorkerId) -> Callable[[Any], Awaitable[str]]:
        async def wake(_: Any) -> str:
            woken_workers.append(worker)
            await register(redis, KEYS, worker)
            return ""

        return wake

    async with beside(obeys(redis, A, wakes(A))), beside(obeys(redis, B, wakes(B))):
        for _ in range(3):
            one.wake_soon(POOL)
        async with asyncio.timeout(10):
            while not (await one.wanted(POOL)).keep_awake:
                await asyncio.sleep(0.01)
    await one.close()
    assert woken_workers == [B]
    assert (await one.wanted(POOL)).keep_awake == 1


def dispatcher(wire: Wire, wakes: list[str] | None = None) -> Dispatcher:
    pool = Pool(model="m", engine="mock", wake_on_request=wakes is not None)
    reader = FleetReader(wire, KEYS, {POOL: pool}, 100)
    return Dispatcher(wire, KEYS, API, reader, {POOL: pool}, patience_s=5.0, wake_pool=(wakes or []).append)


async def test_a_pool_that_sleeps_refuses_a_new_request_at_once(redis: "Redis", wire: Wire) -> None:
    await register(redis, KEYS, A, **ASLEEP)
    with pytest.raises(PoolAsleep) as refusal:
        await dispatcher(wire).send(inflight(job("r1")))
    assert refusal.value.retry_after_s


async def test_a_request_is_placed_where_the_weights_are_and_says_which(redis: "Redis", wire: Wire) -> None:
    """The worker refuses it if they have changed since. Its blocks are those of that version."""
    await register(redis, KEYS, A, state=EngineState(weights="v1"))
    request: InFlight = inflight(replace(job("r1"), prompt=list(range(100))))
    await dispatcher(wire).send(request)
    raw = await redis.get(KEYS.request(request.job.run))
    stored_job = decode_job(raw)  # type: ignore[arg-type]
    assert stored_job.weights == "v1"
    waiting = await redis.hget(KEYS.starting(POOL), request.job.run)
    assert waiting == f"{A}\n".encode() + prompt_hashes(stored_job.prompt, 32, weights="v1")


async def begun(redis: "Redis", wire: Wire, **other: Any) -> list[Any]:
    """The request, and its events, after the worker of an answer of weights v1 gives it back.

    Only the `other` worker is left.
    """
    await register(redis, KEYS, A, state=EngineState(weights="v1"))
    request, one = inflight(job("r1")), dispatcher(wire)
    await one.send(request)
    first_job = request.job
    one.deliver(Delta(first_job.request, first_job.attempt, "x", [5], weights="v1"))
    await register(redis, KEYS, A, draining=True, state=EngineState(weights="v2"))
    await register(redis, KEYS, B, **other)
    one.deliver(Failed(first_job.request, first_job.attempt, "returned", ""))
    await until_not(lambda: request.job.worker != B and request.answer.pending() < 2)
    return [request, *(await request.answer.take())]


async def test_an_answer_goes_on_only_with_the_weights_that_began_it(redis: "Redis", wire: Wire) -> None:
    request, *_ = await begun(redis, wire, state=EngineState(weights="v1"))
    assert request.job.worker == B
    assert request.job.weights == "v1"


async def test_without_them_it_ends_by_name(redis: "Redis", wire: Wire) -> None:
    _, _, failure = await begun(redis, wire, state=EngineState(weights="v2"))
    assert failure.code == WeightsChanged.code
    assert issubclass(WeightsChanged, NoWorker)


def test_hashes_of_other_weights_are_others() -> None:
    prompt = list(range(100))
    versions = {
        prompt_hashes(prompt, 32, salt, weights=weights) for salt in (None, "s") for weights in ("", "v1", "v2")
    }
    assert len(versions) == 6
