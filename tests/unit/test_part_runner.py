"""A part in a worker's hands, when its batch can't wait any longer."""

import asyncio
import dataclasses
import time
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
from msgspec import Struct
from msgspec.structs import replace

from app.batch.batch_store import BatchStore, PartClaim
from app.batch.records import Batch, BatchLine, BatchOrder
from app.batch.storage import Storage
from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.generation import Generation
from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.runtime import Runtime
from app.errors import DeadlineOver, HookDown, Saturated
from app.ids import ApiId, BatchId, FileId
from app.store.handling import Handling
from app.tenants.limit_table import UNLIMITED, TenantLimits
from workers.batch.line_limits import LineLimits
from workers.batch.part_runner import PartRunner

NOW = int(time.time())
ID = BatchId("batch_1")
BATCH = Batch(BatchOrder(ID, "", "/v1/completions", FileId("file-1"), "24h", NOW, NOW + 86_400), "in_progress", total=3)
LATE = replace(BATCH, order=replace(BATCH.order, created=NOW - 3590, expires=NOW + 10))


class Asked(PartRunner):
    """A part whose lines only wait."""

    def __init__(self) -> None:
        runtime = MagicMock(Runtime, dispatcher=MagicMock(Dispatcher, api=ApiId("a"), hook=None, usage=None))
        store, storage, limits, handling = map(MagicMock, (BatchStore, Storage, LineLimits, Handling))
        super().__init__(runtime, store, storage, PartClaim(ID, 0, 1), BATCH, limits, handling)
        self.asked: list[tuple[int, bool]] = []

    async def _answer(self, line: BatchLine) -> None:
        self.asked.append((line.number, self._urgent))
        call = MagicMock(Generation, waits=True, plan=MagicMock(GenerationPlan, aside=not self._urgent))
        self._generations[line.number] = call
        try:
            await asyncio.Event().wait()
        finally:
            if self._generations.get(line.number) is call:
                del self._generations[line.number]


async def asking(lines: int) -> Asked:
    """A part that has asked for so many lines."""
    part = Asked()
    part._ask([BatchLine(n, f"id-{n}", b"{}") for n in range(1, lines + 1)])
    await asyncio.sleep(0)
    return part


async def turns(number: int = 4) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def looked(part: PartRunner, batch: Batch = LATE, times: int = 4) -> None:
    for _ in range(times):
        part.look(batch)
        await asyncio.sleep(0)


async def test_what_comes_back_from_an_engine_waits_behind_nobody_either() -> None:
    """A line may be at an engine's gate when its batch becomes urgent, and is sent back from there later."""
    part = await asking(3)
    part._generations[3].waits = False  # type: ignore[misc]
    await looked(part, BATCH, 1)
    assert part.asked == [(1, False), (2, False), (3, False)]
    await looked(part)
    assert part.asked[3:] == [(1, True), (2, True)]
    part._generations[3].waits = True  # type: ignore[misc]
    await looked(part)
    assert part.asked[5:] == [(3, True)]
    part.drain()
    part._generations.clear()
    await looked(part, LATE, 1)
    assert part.asked[6:] == []


async def test_a_line_that_can_wait_no_longer_is_dispatched_again_when_its_try_has_ended() -> None:
    """Both are charged under one name: the second would have the charge of the first, which gives it back."""
    part, ends = Asked(), asyncio.Event()
    answer = part._answer

    async def slow(line: BatchLine) -> None:
        try:
            await answer(line)
        finally:
            await ends.wait()

    part._answer = slow  # type: ignore[method-assign]
    part._ask([BatchLine(1, "id-1", b"{}")])
    await asyncio.sleep(0)
    await looked(part)
    assert part.asked == [(1, False)]
    ends.set()
    await turns()
    assert (part.asked, len(part._asking)) == ([(1, False), (1, True)], 1)
    part.stop()


async def test_an_answer_that_is_there_is_written_if_its_batch_is_cancelled_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is charged."""
    settled_event, never = asyncio.Event(), asyncio.Event()

    class Call:
        id, waits, is_recorded = "cmpl-1", False, False
        prompt_tokens = cached_tokens = completion_tokens = 1

        def __init__(self, plan: Any, **_: Any) -> None: ...

        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None:
            await settled_event.wait()

    async def understand(_: Any, raw: bytes) -> Any:
        return raw, Planned(0)

    class Writer:
        def __init__(self, _: Any, raw: bytes) -> None:
            self.raw = raw

        async def whole(self) -> dict[str, Any]:
            if self.raw == b"long":
                await never.wait()
            return {}

    part = Asked()
    part._endpoint = dataclasses.replace(part._endpoint, understand=understand, writer=Writer)
    part._answer = partial(PartRunner._answer, part)  # type: ignore[method-assign]
    monkeypatch.setattr("workers.batch.part_runner.Generation", Call)
    part._ask([BatchLine(1, "id-1", b"short"), BatchLine(2, "id-2", b"long")])
    await turns()
    part.look(replace(BATCH, status="cancelling"))
    settled_event.set()
    while part._asking:
        await asyncio.wait(part._asking)
    assert list(part._results) == [1]


async def test_a_line_whose_answer_is_recorded_is_not_given_up() -> None:
    """A line given up would be computed and charged again, with one record of both."""
    part = await asking(2)
    for number, call in part._generations.items():
        call.is_recorded = number == 1  # type: ignore[misc]
    part.stop()
    await turns()
    assert [line.number for line in part._asking.values()] == [1]
    part._cancel([*part._asking.values()])


async def test_a_line_asks_for_a_hook_that_is_down_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else that is away is asked as often as ever."""
    part, pauses = Asked(), list[float]()
    tries = iter([HookDown(), HookDown(), HookDown(), Saturated(), HookDown(), DeadlineOver()])

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    async def request(_: BatchLine) -> Any:
        raise next(tries)

    monkeypatch.setattr("workers.batch.part_runner.asyncio.sleep", sleep)
    monkeypatch.setattr(part, "_request", request)
    await PartRunner._answer(part, BatchLine(1, "id-1", b"{}"))
    assert pauses == [1, 2, 4, 1, 1]


class Planned(Struct, frozen=True):
    priority: int
    timeout_s: float = 0
    aside: bool = False
    whole: bool = False


@pytest.mark.parametrize(("asked", "got"), [(-(2**31), 10), (0, 10), (7, 17)])
async def test_no_line_is_put_before_what_is_online(monkeypatch: pytest.MonkeyPatch, asked: int, got: int) -> None:
    """No line goes before other batches' lines either, whatever it says of itself."""
    plans: list[Planned] = []

    async def understand(*_: Any) -> Any:
        return None, Planned(asked)

    def call(plan: Planned, **_: Any) -> None:
        plans.append(plan)
        raise InterruptedError

    part = Asked()
    part._endpoint = dataclasses.replace(part._endpoint, understand=understand)
    monkeypatch.setattr("workers.batch.part_runner.Generation", call)
    for part._urgent in (True, False):
        with pytest.raises(InterruptedError):
            await part._request(BatchLine(1, "id", b"{}"))
    assert [(plan.aside, plan.priority) for plan in plans] == [(False, got), (True, got + 90)]


def within(part: PartRunner, limits: TenantLimits) -> None:
    """Sets what its client may ask for from now on."""
    part._limits.within.return_value = limits  # type: ignore[attr-defined]


async def test_a_line_is_understood_within_the_limits_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line may have been ordered months ago."""

    async def understand(asking: Asking, _: bytes) -> Any:
        askings.append(asking)
        raise InterruptedError

    askings: list[Asking] = []
    part = Asked()
    part._endpoint = dataclasses.replace(part._endpoint, understand=understand)
    within(part, today := TenantLimits(max_tokens=2))
    with pytest.raises(InterruptedError):
        await part._request(BatchLine(1, "id", b"{}"))
    assert [(asking.asker.owner, asking.within) for asking in askings] == [("", today)]


async def test_lines_that_wait_are_understood_again_when_their_client_has_other_limits() -> None:
    """Lines wait for hours if a limit a minute is low. Lines on an engine are finished, as online requests are."""
    part, other_limits = Asked(), TenantLimits(models=["other"])
    within(part, UNLIMITED)
    part._ask([BatchLine(n, f"id-{n}", b"{}") for n in (1, 2, 3)])
    await asyncio.sleep(0)
    part._within = {1: UNLIMITED, 2: UNLIMITED, 3: UNLIMITED}
    part._generations[3].waits = False  # type: ignore[misc]
    await looked(part, BATCH, 1)
    assert [number for number, _ in part.asked] == [1, 2, 3]
    within(part, other_limits)
    part.look(BATCH)
    part._within |= {1: other_limits, 2: other_limits}  # as `_request` has it
    await turns()
    part.look(BATCH)
    assert [number for number, _ in part.asked] == [1, 2, 3, 1, 2]
