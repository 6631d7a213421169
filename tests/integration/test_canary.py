"""An idle worker whose engine answers, is late, hangs or is dead: a mock engine and a real Redis, without Celery."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.engines.base import GenerateRequest, StepOutput
from app.messages.commands import Pause, Resume, Sleep, Wake
from app.messages.lease import EngineState
from tests.integration.test_state_keeper import Kept, kept
from tests.stack import wait_until
from workers.engine import canary
from workers.engine.worker_metrics import metrics

IDLE_S = 0.05


class Idle:
    """A registered worker that has nothing to do."""

    def __init__(self, one: Kept) -> None:
        self.one, self.engine = one, one.runner.engine
        self.canary = canary.Canary(one.runner, one.lease, one.keeper.presence, one.keeper.changing)
        self.running = self.on_loop(self.canary.run())

    def on_loop(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        async def begun() -> "asyncio.Task[None]":
            return asyncio.create_task(work)

        return self.one.runner.call(begun())

    @property
    def probes(self) -> int:
        return self.engine.stats().prefill_tokens

    def is_probed(self) -> None:
        before = self.probes
        wait_until(lambda: self.probes > before + 2, "it is probed again and again")  # two tokens each time

    def end(self) -> None:
        self.one.runner.soon(self.running.cancel)
        wait_until(self.running.done, "the canary has ended")


@pytest.fixture
def idle(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Idle]:
    with kept(store_url, tmp_path, monkeypatch) as one:
        one.adopts()
        one.runner.call(one.lease.register())
        one.runner.settings = one.runner.settings.model_copy(update={"canary_s": IDLE_S})
        idle_worker = Idle(one)
        yield idle_worker
        idle_worker.end()


def test_an_idle_engine_is_asked_again_and_again_and_nobody_sees_it(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No metric shows it afterwards or while a probe is in the engine, which has counted it already."""
    runner, real, meanwhile = idle.one.runner, idle.engine.generate, list[float]()  # type: ignore[attr-defined]

    def told(name: str) -> float:
        return {one.name: one.value for one in metrics(runner, runner.engine.stats())}[name]

    async def generate(request: GenerateRequest) -> AsyncIterator[StepOutput]:
        async for step in real(request):
            meanwhile.append(told("xylem_worker_prefill_tokens"))
            yield step

    monkeypatch.setattr(idle.engine, "generate", generate)
    wait_until(lambda: len(meanwhile) > 1, "it is probed again and again")
    assert set(meanwhile) == {0}
    assert told("xylem_worker_prefill_tokens") == told("xylem_worker_busy_seconds") == 0
    assert not runner.emitters.outputs
    assert idle.one.serves


@pytest.mark.parametrize(("stop", "go_on"), [(Pause("c", "wait"), Resume("c")), (Sleep("c", 1, "wait"), Wake("c"))])
def test_what_stands_still_is_not_asked_until_it_goes_on(idle: Idle, stop: Any, go_on: Any) -> None:
    idle.is_probed()
    idle.one.executes(stop)
    before = idle.probes
    deadline = time.monotonic() + 10 * IDLE_S
    wait_until(lambda: time.monotonic() > deadline, "it has been looked at")
    assert idle.probes == before
    idle.one.executes(go_on)
    idle.is_probed()
    assert idle.one.serves


@pytest.mark.parametrize("busy", ["closed", "draining", "changing", "a request"])
def test_a_busy_worker_is_left_alone(idle: Idle, monkeypatch: pytest.MonkeyPatch, busy: str) -> None:
    one = idle.one
    idle.end()  # it would be busy with its own probes
    assert not idle.canary._is_busy
    with monkeypatch.context() as now:
        if busy == "closed":
            now.setattr(one.runner, "closed", True)
        elif busy == "draining":
            now.setattr(one.lease, "_draining", True)
        elif busy == "changing":
            now.setattr(one.keeper.changing, "_locked", True)
        else:
            now.setitem(one.runner._running, "r.0", None)
        assert idle.canary._is_busy
    assert not idle.canary._is_busy


def test_a_late_engine_leaves_routing_and_comes_back_with_its_answer(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "_LATE_S", 0.2)
    (core,) = idle.engine._cores  # type: ignore[attr-defined]
    idle.one.runner.call(core.pause())
    wait_until(lambda: idle.one.told.draining, "it has left routing")
    assert not idle.one.runner.closed  # what it has may still end
    idle.one.runner.soon(core.resume)
    wait_until(lambda: idle.one.told.state == EngineState(), "it is back")
    assert not idle.one.ended
    idle.is_probed()


def test_an_engine_that_never_answers_ends_its_worker(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end comes at once: a process that hangs can't end cleanly."""
    exit_codes: list[int] = []
    monkeypatch.setattr(canary, "_LATE_S", 0.1)
    monkeypatch.setattr(canary, "os", SimpleNamespace(_exit=exit_codes.append))
    idle.one.runner.settings = idle.one.runner.settings.model_copy(update={"stall_s": 0.3})
    (core,) = idle.engine._cores  # type: ignore[attr-defined]
    idle.one.runner.call(core.pause())
    wait_until(lambda: exit_codes, "the worker has ended")
    assert exit_codes[0] == 1
    idle.one.runner.soon(core.resume)


def test_a_dead_engine_takes_its_worker_out_of_routing_and_ends_it(idle: Idle) -> None:
    idle.is_probed()
    idle.one.runner.soon(lambda: idle.engine._broke(RuntimeError("A part of it is gone.")))  # type: ignore[attr-defined]
    wait_until(lambda: idle.one.ended, "it ends")
    assert idle.one.ended == [(os.getpid(), 15)]
    assert not idle.one.serves
