"""Loops that run as long as their process: whatever is thrown into one, it goes on; and all are kept in one way."""

import ast
import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import structlog
from redis.exceptions import ConnectionError as RedisConnectionError

from app.errors import EngineDead, StoreDown
from app.running import loops
from app.running.ending import end_tasks
from app.running.loops import keep, keep_in_thread, sooner
from app.store import Wire, async_client
from app.telemetry import LOOP_FAILURES
from tests.stack import ROOT

KINDS: tuple[BaseException, ...] = (
    RuntimeError("the handler is closed"), OSError("away"), RedisConnectionError("away"), StoreDown("away"),
    KeyError("k"), TimeoutError(), ExceptionGroup("both", [ValueError()]), asyncio.CancelledError(),
)  # fmt: skip


def counted(failing: str) -> float:
    return float(LOOP_FAILURES.labels(failing)._value.get())


async def test_loops_that_fail_of_redis_name_it_and_no_password() -> None:
    """Its name and where it is, not one event for each loop that can't go on without it."""
    wire, turns, over = Wire(async_client("redis://me:secret@127.0.0.1:1/3")), 0, asyncio.Event()

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if turns > 1:
            over.set()
        else:
            await wire.execute([("PING",)])

    (line,) = await logs_of(keep("lease_not_renewed", turn, 0), over)
    facts = {key: line[key] for key in ("event", "failing", "url")}
    assert facts == {"event": "redis_unreachable", "failing": "lease_not_renewed", "url": "redis://127.0.0.1:1/3"}
    assert "secret" not in str(line)


async def logs_of(loop: Coroutine[Any, Any, None], ended: asyncio.Event) -> list[Any]:
    """The lines that it logs until then."""
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(loop)
        async with asyncio.timeout(30):
            await ended.wait()
        await end_tasks([task])
    return list(logs)


@pytest.mark.parametrize("where", ["turn", "pause"])
async def test_a_loop_goes_on_whatever_is_thrown_into_it(where: str) -> None:
    """Each is logged with its kind, and counted; a future that it awaits and somebody cancels is no end either."""
    remaining_kinds, end_event = list(KINDS), asyncio.Event()

    async def throw() -> None:
        await asyncio.sleep(0)
        if remaining_kinds:
            raise remaining_kinds.pop(0)
        end_event.set()

    async def nothing() -> None:
        await asyncio.sleep(0)

    turn, pause = (throw, nothing) if where == "turn" else (nothing, throw)
    logs = await logs_of(keep(f"{where}_failed", turn, pause, of="it"), end_event)
    assert counted(f"{where}_failed") == len(KINDS)
    assert all(line.get("failing", line["event"]) == f"{where}_failed" and line["of"] == "it" for line in logs)
    assert [line.get("exc_info") or line["error"] for line in logs] == [
        {OSError: repr(exc), RedisConnectionError: repr(exc), StoreDown: "away", TimeoutError: repr(exc)}.get(
            type(exc), exc
        )
        for exc in KINDS
    ]


async def test_a_loop_ends_when_it_is_cancelled_though_its_turn_takes_no_notice() -> None:
    start_event = asyncio.Event()

    async def turn() -> None:
        start_event.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return

    task = asyncio.create_task(keep("never", turn, 60))
    await start_event.wait()
    task.cancel()
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()


async def test_what_is_said_to_end_a_loop_does() -> None:
    def turn() -> None:
        raise EngineDead("gone")

    with pytest.raises(EngineDead):
        await keep("not_kept", turn, 0, ends=EngineDead)


async def test_a_long_outage_is_logged_ever_less_and_tried_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_FIRST_S", 0.0)
    turns, end_event = 0, asyncio.Event()

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns <= 100:
            raise StoreDown("away")
        end_event.set()

    assert len(await logs_of(keep("not_told", turn, 0), end_event)) == 7  # 1, 2, 4, … 64


async def test_a_pause_that_fails_again_and_again_is_logged_ever_less_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn between the failures goes well."""
    monkeypatch.setattr(loops, "_FIRST_S", 0.0)
    pauses, end_event = 0, asyncio.Event()

    def pause() -> asyncio.Future[None]:
        nonlocal pauses
        pauses += 1
        if pauses == 9:
            end_event.set()
        raise KeyError("k")

    assert len(await logs_of(keep("no_pause", lambda: None, pause), end_event)) == 4  # 1, 2, 4, 8


async def test_what_fails_after_it_went_well_for_long_is_logged_as_a_first_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A subscription is one turn that lasts as long as its connection."""
    monkeypatch.setattr(loops, "_FIRST_S", 0.0)
    monkeypatch.setattr(loops, "_MOST_S", 0.05)
    lasting_s, end_event = [0.0, 0.0, 0.2], asyncio.Event()

    async def turn() -> None:
        if not lasting_s:
            end_event.set()
            return
        await asyncio.sleep(lasting_s.pop(0))
        raise StoreDown("away")

    assert len(await logs_of(keep("not_heard", turn, 0), end_event)) == 3


async def test_a_loop_can_be_woken() -> None:
    """Each time once: what woke it is forgotten."""
    event, turns = asyncio.Event(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1

    task = asyncio.create_task(keep("not_woken", turn, sooner(event, 60)))
    for target in (1, 2, 3):
        async with asyncio.timeout(30):
            while turns < target:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert turns == target
        event.set()
    await end_tasks([task])


def test_a_thread_goes_on_whatever_is_thrown_into_it() -> None:
    kinds: list[Any] = [exc for exc in KINDS if isinstance(exc, Exception)]
    remaining_kinds, end_event = list(kinds), threading.Event()

    def turn() -> None:
        if remaining_kinds:
            raise remaining_kinds.pop(0)
        end_event.set()

    thread = threading.Thread(target=keep_in_thread, args=("thread_failed", turn, end_event.is_set))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert counted("thread_failed") == len(kinds)


# Endless ones that nothing keeps: the helper itself, and an engine whose end is its worker's.
_OTHERS = {("app/running/loops.py", "keep"), ("app/engines/mock/core.py", "_step_forever")}


def functions() -> Iterator[tuple[str, ast.Module, ast.AsyncFunctionDef | ast.FunctionDef]]:
    for folder in ("app", "workers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ast.parse(path.read_text())
            for node in ast.walk(module):
                if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
                    yield str(path.relative_to(ROOT)), module, node


def own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes in it, without those of a function inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.AsyncFunctionDef | ast.FunctionDef | ast.Lambda):
            yield child
            yield from own(child)


def kept(module: ast.Module) -> set[str]:
    """Names of the functions that `keep` is given."""
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    targets = [call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id.startswith("keep")
               and len(call.args) > 1]  # fmt: skip
    return {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in targets}


def test_no_loop_without_an_end_is_outside_keep() -> None:
    """An error would otherwise end the loop, and nobody would hear of it."""
    endless = set()
    for path, module, function in functions():
        for loop in own(function):
            if not isinstance(loop, ast.While) or not isinstance(loop.test, ast.Constant):
                continue
            inside = list(own(loop))
            awaits = any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in inside)
            ends = any(isinstance(node, ast.Return | ast.Break) for node in inside)
            if awaits and not ends and function.name not in kept(module):
                endless.add((path, function.name))
    assert endless == _OTHERS


def test_each_thread_that_looks_again_and_again_is_kept() -> None:
    """An engine's own threads end with it."""
    names = []
    for path in sorted([*(ROOT / "app").glob("*.py"), *(ROOT / "workers").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and "Thread" in map(ast.unparse, node.bases):
                names.append(node.name)
                assert "keep_in_thread" in ast.unparse(node), path
    assert names


async def test_a_pause_that_nobody_ends_is_over_without_a_failure() -> None:
    async with asyncio.timeout(30):
        await sooner(asyncio.Event(), 0.01)()
