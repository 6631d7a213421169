"""Tests a worker whose state can't be changed as wanted: on a mock engine and a real Redis, without Celery."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from app.engines.base import GenerateRequest, StepOutput
from app.errors import EngineDead, EngineFailed, XylemError
from app.ids import WorkerId
from app.keys import Keys
from app.messages.commands import Pause, Resume, SetWeights, Sleep, StateCommand, Wake
from app.messages.lease import EngineState, Lease, Worker, decode_lease
from app.messages.wanted import PoolState, WeightsSource
from app.messages.wire import encode
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from app.runner.runner import Runner
from app.settings import Settings
from tests.integration.conftest import POOL
from workers.engine import presence
from workers.engine.lease import LeaseKeeper
from workers.engine.state_keeper import StateKeeper

KEYS, NAME = Keys("test"), WorkerId("w1")
SENT = WeightsSource("", None, {})  # through a transfer group


class Kept:
    """A worker without its tasks."""

    def __init__(self, redis: "Redis", runner: Runner, pool: Pool) -> None:
        self.redis, self.runner, self.ended = redis, runner, list[tuple[int, int]]()
        self._info = runner.load()
        self.lease, self.keeper = runner.call(self._made(pool))

    async def _made(self, pool: Pool) -> tuple[LeaseKeeper, StateKeeper]:
        lease = LeaseKeeper(self.runner, POOL, Pool(model="m", engine="mock"), self._info)
        return lease, StateKeeper(self.runner, lease, POOL, pool, [])

    def wants(self, state: PoolState) -> None:
        self.redis.set(KEYS.pool_state(POOL), encode(state))

    def adopts(self) -> None:
        self.runner.call(self.keeper.adopt())

    def executes(self, command: StateCommand) -> None:
        self.runner.call(self.keeper.execute(command))

    @property
    def told(self) -> Lease:
        raw = self.redis.get(KEYS.worker(NAME))
        assert isinstance(raw, bytes)
        return decode_lease(raw)

    @property
    def serves(self) -> bool:
        """Whether it takes requests, as routing and the worker itself see it."""
        assert self.told.draining == self.runner.closed
        return not self.told.draining


@contextmanager
def kept(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **args: Any) -> Iterator[Kept]:
    """Registered, unless the test says what is wanted before."""
    for version in ("v1", "v2"):
        (folder / version).mkdir()
    redis = Redis.from_url(url)
    redis.flushall()
    pool = Pool(model="mock", engine="mock", max_model_len=4096, args={"step_ms": 2.0, **args})
    runner = Runner(create_engine(pool), NAME, POOL, Settings(redis_url=url, deployment="test", weights_folder=folder))
    worker = Kept(redis, runner, pool)
    monkeypatch.setattr(presence, "os", SimpleNamespace(getpid=os.getpid, kill=lambda *how: worker.ended.append(how)))
    try:
        yield worker
    finally:
        runner.call(worker.lease.end())
        runner.close()
        redis.close()


@pytest.fixture
def fleet_of_one(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    with kept(store_url, tmp_path, monkeypatch) as worker:
        worker.adopts()
        worker.runner.call(worker.lease.register())
        yield worker


@pytest.mark.parametrize(
    ("wanted", "state"),
    [
        (PoolState(weights="v1"), EngineState(weights="v1")),
        (PoolState(paused="wait"), EngineState(paused="wait")),
        (PoolState(sleep=2), EngineState(asleep=2)),
        (PoolState(sleep=1, keep_awake=1), EngineState()),
    ],
)
def test_what_is_wanted_while_a_worker_registers_is_taken_over(
    fleet_of_one: Kept, tmp_path: Path, wanted: PoolState, state: EngineState
) -> None:
    """No command came: its sender did not see the worker.

    None comes either when the state is not wanted any more.
    """
    one = fleet_of_one
    source = WeightsSource(str(tmp_path / wanted.weights)) if wanted.weights else None
    one.wants(replace(wanted, source=source))
    one.adopts()
    assert one.told.state == state
    assert one.serves == (not state.paused and not state.asleep)
    one.wants(PoolState())
    one.adopts()
    assert one.told.state == EngineState()
    assert one.serves


@pytest.mark.parametrize("command", [Sleep("c", 1, "wait"), Pause("c", "wait"), SetWeights("c", "v9", None, "wait")])
def test_a_worker_whose_change_fails_serves_as_before(fleet_of_one: Kept, tmp_path: Path, command: Any) -> None:
    one, engine = fleet_of_one, fleet_of_one.runner.engine

    async def fails(*_: Any) -> None:
        raise EngineFailed("No.")

    if isinstance(command, SetWeights):
        command = replace(command, source=WeightsSource(str(tmp_path / "v9")))
    else:
        setattr(engine, "sleep" if isinstance(command, Sleep) else "pause", fails)
    with pytest.raises(XylemError):
        one.executes(command)
    assert one.told.state == EngineState()
    assert one.serves
    assert not one.ended
    one.runner.call(one.keeper.presence.prove())


@pytest.mark.parametrize("command", [Sleep("c", 1, "wait"), Pause("c", "abort"), SetWeights("c", "v1", SENT, "wait")])
def test_a_worker_that_loses_redis_in_a_change_serves_as_before(
    fleet_of_one: Kept, monkeypatch: pytest.MonkeyPatch, command: StateCommand
) -> None:
    """The worker can't know whether requests are on their way to it."""
    one = fleet_of_one
    with monkeypatch.context() as away:
        away.setattr(one.runner.redis, "hlen", AsyncMock(side_effect=RedisConnectionError))
        with pytest.raises(RedisConnectionError):
            one.executes(command)
    assert one.told.state == EngineState()
    assert one.serves
    one.executes(command)
    assert one.told.state != EngineState()


def changed(command: StateCommand, what: str, error: XylemError) -> Any:
    return pytest.param(command, what, error, id=f"{type(command).__name__}-{type(error).__name__}")


@pytest.mark.parametrize(
    ("command", "what", "error"),
    [
        changed(SetWeights("c", "v1", SENT, "abort"), "update_weights", EngineFailed("Neither these nor those.")),
        changed(SetWeights("c", "v1", SENT, "abort"), "pause", EngineDead("It died.")),
        changed(Sleep("c", 1, "abort"), "sleep", EngineDead("It died.")),
        changed(Pause("c", "keep"), "resume", EngineFailed("It stands still.")),
    ],
)
def test_a_worker_ends_when_its_engine_is_of_no_use_any_more(
    fleet_of_one: Kept, command: StateCommand, what: str, error: XylemError
) -> None:
    """A restarted one takes over what its pool says. It would stand still for ever, or serve nobody knows what."""
    one = fleet_of_one

    async def fails(*_: Any) -> None:
        raise error

    setattr(one.runner.engine, what, fails)
    if what == "resume":
        setattr(one.runner.engine, "pause", fails)  # noqa: B010 (mypy knows no such attribute)
    with pytest.raises(XylemError):
        one.executes(command)
    assert one.ended
    assert not one.serves


async def _no_token(_: GenerateRequest) -> AsyncIterator[StepOutput]:
    return
    yield


def test_a_worker_that_makes_no_token_does_not_come_back(
    fleet_of_one: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = fleet_of_one
    one.executes(Sleep("c", 1, "wait"))
    with monkeypatch.context() as patch:
        patch.setattr(one.runner.engine, "generate", _no_token)
        with pytest.raises(EngineFailed, match="no token"):
            one.executes(Wake("c"))
        assert not one.serves
        assert not one.ended
    one.executes(Wake("c"))
    assert one.serves
    monkeypatch.setattr(one.runner.engine, "generate", _no_token)
    with pytest.raises(EngineFailed, match="no token"):
        one.executes(SetWeights("c", "v1", WeightsSource(str(tmp_path / "v1")), "wait"))
    assert not one.serves
    assert one.ended


def test_a_worker_that_awaits_weights_takes_no_requests_until_they_are_sent(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command changes that."""
    with kept(store_url, tmp_path, monkeypatch) as one:
        one.wants(PoolState(weights="v5", source=SENT, paused="keep"))
        one.adopts()
        one.runner.call(one.lease.register())
        for command in (Resume("c"), Sleep("c", 1, "wait"), Wake("c", ["kv_cache"])):
            one.executes(command)
            assert not one.serves
        with pytest.raises(EngineFailed, match="sent again"):
            one.executes(Wake("c"))
        assert not one.serves
        one.executes(SetWeights("c", "v5", SENT, "wait"))
        one.executes(Wake("c"))
        assert one.serves
        assert one.told.state == EngineState(weights="v5")


def test_a_worker_that_sleeps_already_is_not_paused_as_well(fleet_of_one: Kept) -> None:
    """A command would be refused so; here the wanted state asks, and no command."""
    one = fleet_of_one
    one.wants(PoolState(sleep=1))
    one.adopts()
    one.wants(PoolState(sleep=1, paused="wait"))
    one.adopts()
    assert one.told.state == EngineState(asleep=1)


def test_others_that_are_awake_let_a_new_one_sleep(fleet_of_one: Kept) -> None:
    """The new worker doesn't count itself."""
    one = fleet_of_one
    other = Worker(WorkerId("w2"), POOL, "both", "here", 1, 32, 100, 8, 4096)
    one.redis.set(KEYS.worker(other.id), encode(Lease(other)))
    one.redis.hset(KEYS.pool(POOL), other.id, "1,0")
    one.wants(PoolState(sleep=1, keep_awake=1))
    one.adopts()
    assert one.told.state.asleep


def test_changes_come_one_after_the_other(fleet_of_one: Kept, tmp_path: Path) -> None:
    """Two at once end as if they had come in some order: never half of each."""
    one = fleet_of_one
    source = WeightsSource(str(tmp_path / "v1"))
    crossing: list[Callable[[], Awaitable[None]]] = [
        lambda: one.keeper.execute(Sleep("a", 2, "abort")),
        lambda: one.keeper.execute(SetWeights("b", "v1", source, "wait")),
        lambda: one.keeper.execute(Pause("c", "keep")),
        lambda: one.keeper.execute(Wake("d")),
        lambda: one.keeper.execute(Resume("e")),
    ]

    async def cross() -> None:
        await asyncio.gather(*(change() for change in crossing), return_exceptions=True)

    one.wants(PoolState(weights="v1", source=source))
    one.runner.call(cross())
    assert one.told.state == EngineState(weights="v1")
    assert one.serves
    one.runner.call(one.keeper.presence.prove())
