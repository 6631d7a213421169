"""The keeper of a worker's adapters, between a request that comes and one that waits for its slot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.engines.base import EngineInfo
from app.errors import AdapterFailed, EngineDead
from app.ids import WorkerId
from app.keys import Keys
from app.messages.job import Job
from app.messages.lease import EngineState
from app.messages.wanted import Adapter
from app.messages.wire import encode
from app.runner.adapters_in_use import AdaptersInUse
from app.settings import load_settings
from tests import jobs
from tests.jobs import POOL
from tests.leases import lease
from tests.lora import tiny_adapter
from tests.models import mock
from workers.engine.adapter_keeper import AdapterKeeper

ME = WorkerId("me")


class Fake:
    """Redis, lease and engine of one worker."""

    def __init__(self, path: Path, *adapters: Adapter, slots: int = 1) -> None:
        self.wanted, self.version = {a.name: a for a in adapters}, b"1"
        self.meanwhile: Callable[[], Any] = lambda: None  # while the fleet is read
        self.loaded: list[str] = []
        self.told: list[list[str]] = []
        self.breaks: Exception | None = None
        self._lease = encode(lease(ME, max_adapters=slots))
        self.in_use = AdaptersInUse()
        self.state, self.changing = EngineState(), asyncio.Lock()
        settings = load_settings(lora_sources=str(path), lora_store=path / "store")
        runner = SimpleNamespace(redis=self, keys=Keys("x"), worker=ME, settings=settings, adapters=self.in_use)
        info = EngineInfo(16, 100, 8, 100, max_adapters=slots, max_adapter_rank=8)
        self.keeper = AdapterKeeper(cast(Any, runner), cast(Any, self), self, POOL, mock(), info, self.changing)

    async def get(self, _key: str) -> bytes:
        return self.version

    async def hgetall(self, _key: str) -> dict[bytes, bytes]:
        return {name.encode(): encode(a) for name, a in self.wanted.items()}

    async def hkeys(self, _key: str) -> list[bytes]:
        self.meanwhile()
        return [ME.encode()]

    async def mget(self, _keys: list[str]) -> list[bytes]:
        return [self._lease]

    async def tell(self) -> None:
        self.told.append(list(self.in_use.open))

    async def add_adapter(self, name: str, path: Path) -> None:
        if self.breaks is not None:
            raise self.breaks
        assert (path / "adapter_model.safetensors").exists()
        self.loaded.append(name)

    async def remove_adapter(self, name: str) -> None:
        assert not self.in_use.use(name).requests, "it has requests"
        assert name not in self.in_use.open, "requests may come for it"
        self.loaded.remove(name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.keeper.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)


def adapter(path: Path, name: str, least: int = 0, version: int = 1) -> Adapter:
    folder = path / name
    source = folder if folder.exists() else tiny_adapter(folder, name)
    return Adapter(name, version, "m", str(source), min_workers=least)


def job(name: str) -> Job:
    return jobs.job(adapter=name)


async def test_an_adapter_that_a_request_has_just_got_is_not_put_out(tmp_path: Path) -> None:
    """The adapter was idle when the fleet began to be read; then a request came. The other one waits until it ends."""
    fake = Fake(tmp_path, adapter(tmp_path, "a"), adapter(tmp_path, "b"))
    async with fake.running():
        fake.keeper.look("a@1")
        await fake.until(lambda: fake.in_use.open == ["a@1"])
        uses: list[Any] = []

        def begin() -> None:
            if not uses:
                uses.append(fake.in_use.of(job("a@1")))
                uses[0].__enter__()

        fake.meanwhile = begin
        fake.keeper.look("b@1")
        await fake.until(lambda: bool(uses))
        await asyncio.sleep(0.1)
        assert fake.loaded == ["a@1"]
        uses[0].__exit__(None, None, None)
        await fake.until(lambda: fake.in_use.open == ["b@1"])
        assert fake.loaded == ["b@1"]


async def test_of_a_swap_the_old_version_is_refused_at_once_and_goes_after_its_last_request(tmp_path: Path) -> None:
    fake = Fake(tmp_path, adapter(tmp_path, "a", 1), slots=2)
    async with fake.running():
        await fake.until(lambda: fake.in_use.open == ["a@1"])
        with fake.in_use.of(job("a@1")):
            fake.wanted, fake.version = {"a": adapter(tmp_path, "a", 1, version=2)}, b"2"
            fake.keeper.look()
            await fake.until(lambda: fake.in_use.open == ["a@2"])
            assert [] in fake.told  # neither, meanwhile
            assert fake.loaded == ["a@1", "a@2"]
        await fake.until(lambda: fake.loaded == ["a@2"])


@pytest.mark.parametrize("exc", [AdapterFailed("bad weights"), ValueError("x")])
async def test_what_breaks_is_told_and_does_no_harm(tmp_path: Path, exc: Exception) -> None:
    fake = Fake(tmp_path, adapter(tmp_path, "a", 1), slots=2)
    fake.breaks = exc
    async with fake.running():
        await fake.until(lambda: bool(fake.in_use.failed))
        fake.breaks, fake.version = None, b"2"
        fake.wanted["b"] = adapter(tmp_path, "b", 1)
        fake.keeper.look()
        await fake.until(lambda: fake.in_use.open == ["b@1"])
        assert list(fake.in_use.failed) == ["a@1"]


async def test_an_engine_that_sleeps_is_left_alone(tmp_path: Path) -> None:
    """An engine may also fall asleep during the fetch. It has no memory for weights then, and nobody gets old ones."""
    fake = Fake(tmp_path, adapter(tmp_path, "a", 1), slots=2)
    async with fake.running():
        await fake.until(lambda: fake.in_use.open == ["a@1"])
        async with fake.changing:
            fake.wanted, fake.version = {"a": adapter(tmp_path, "a", 1, version=2)}, b"2"
            fake.keeper.look()
            await fake.until(lambda: fake.told[-1] == [])
            fake.state = EngineState(asleep=2)
        fake.keeper.look()
        await asyncio.sleep(0.1)
        assert (fake.loaded, fake.in_use.open) == (["a@1"], [])
        fake.state = EngineState()
        await fake.until(lambda: fake.loaded == ["a@2"])
        await fake.until(lambda: fake.in_use.open == ["a@2"])


async def test_what_was_being_fetched_when_the_engine_fell_asleep_is_loaded_when_it_wakes(tmp_path: Path) -> None:
    fake = Fake(tmp_path, adapter(tmp_path, "a"))
    async with fake.running():
        tasks: list[Any] = []
        fake.meanwhile = lambda: tasks or tasks.append(asyncio.create_task(fake.changing.acquire()))
        fake.keeper.look("a@1")
        await fake.until((tmp_path / "store" / "a@1" / "files").is_dir)
        await asyncio.sleep(0.1)
        assert (fake.changing.locked(), fake.loaded) == (True, [])
        fake.state = EngineState(asleep=1)
        fake.changing.release()
        await asyncio.sleep(0.1)
        assert fake.loaded == []
        fake.state = EngineState()
        fake.keeper.look("a@1")
        await fake.until(lambda: fake.in_use.open == ["a@1"])


async def test_a_dead_engine_ends_it(tmp_path: Path) -> None:
    """The process ends with it."""
    fake = Fake(tmp_path, adapter(tmp_path, "a", 1))
    fake.breaks = EngineDead()
    with pytest.raises(EngineDead):
        await asyncio.wait_for(fake.keeper.run(), 10)


@pytest.mark.parametrize("steps", range(4))
async def test_it_ends_though_something_comes_at_that_moment(tmp_path: Path, steps: int) -> None:
    fake = Fake(tmp_path, adapter(tmp_path, "a", 1))
    async with asyncio.timeout(10), fake.running():
        await fake.until(lambda: fake.in_use.open == ["a@1"])
        await asyncio.sleep(0.05)  # it awaits the next request
        fake.keeper.look()
        for _ in range(steps):
            await asyncio.sleep(0)
