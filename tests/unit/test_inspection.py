"""The content hook's view of a request, and what happens to the request while the hook is asked."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import MagicMock

import orjson
import pytest

from app.dispatch.answering import content_hook
from app.dispatch.answering.content_hook import ContentHook, pause_s
from app.dispatch.answering.dispatcher import Dispatcher
from app.dispatch.answering.generation import Generation
from app.dispatch.answering.inspection import Deltas, Inspection
from app.dispatch.generation_plan import GenerationPlan, NamesBody
from app.dispatch.observing.timeline import Timelines
from app.errors import Cancelled, ContentRefused, DeadlineOver, HookDown, Saturated, XylemError
from app.ids import ApiId, RequestId
from app.messages.events import Delta
from app.messages.job import Sampling
from app.openai.responses.schemas import ResponseRequest
from app.store import clock
from app.tenants.records import NOBODY
from tests.models import model

ID = RequestId("resp_0123")
ANSWER = [(0, Delta(ID, 0, "fish", [7, 8]))]


class Hook:
    """Answers with these errors, one after the other; then it allows everything, or nobody hears of it."""

    parts = frozenset({"prompt", "answer"})

    def __init__(self, *errors: XylemError, silent: bool = False) -> None:
        self._errors, self._silent = iter(errors), silent
        self.shown: list[dict[str, Any]] = []
        self.is_asked = asyncio.Event()

    async def check(self, _part: str, said: Callable[[], dict[str, Any]], _names: dict[str, str]) -> None:
        self.shown.append(orjson.loads(orjson.dumps(said())))
        self.is_asked.set()
        if (error := next(self._errors, None)) is not None:
            raise error
        if self._silent:
            await asyncio.Event().wait()


def plan(asked: NamesBody | None = None) -> GenerationPlan:
    return GenerationPlan("resp_", model(), [[1]], [Sampling(3)], timeout_s=60, asked=asked)


def inspection(hook: Hook, asked: NamesBody | None = None, left_s: float = 60) -> Inspection:
    counted_deltas: list[Delta] = []
    own = cast(ContentHook, hook)
    return Inspection(ID, plan(asked), NOBODY, own, {}, counted_deltas.append, clock.now() + left_s)


def reading() -> Callable[[], Any]:
    readings: list[Deltas] = [[*ANSWER], []]

    async def read() -> Deltas:
        return readings.pop(0)

    return read


SAID = [f"said-{i}" for i in range(10)]
ITEMS = [
    {"role": "user", "content": [
        {"type": "input_text", "text": SAID[0]}, {"type": "input_image", "image_url": f"https://a.example/{SAID[1]}"},
    ]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": SAID[2]}]},
    {"type": "function_call", "call_id": "c", "name": SAID[3], "arguments": json.dumps({"a": SAID[4]})},
    {"type": "function_call_output", "call_id": "c", "output": SAID[5]},
    {"type": "custom_tool_call", "call_id": "d", "name": SAID[6], "input": SAID[7]},
    {"type": "custom_tool_call_output", "call_id": "d", "output": SAID[8]},
    {"role": "user", "content": [{"type": "input_image", "file_id": SAID[9]}]},
]  # fmt: skip


async def test_the_hook_is_shown_all_that_a_response_says() -> None:
    """Calls, reasoning and pictures were left out: the messages were written as their base class."""
    body = ResponseRequest.model_validate({"model": "m", "input": ITEMS})
    hook = Hook()
    await inspection(hook, body.as_chat(body.items)).prompt()
    shown_text = json.dumps(hook.shown)
    assert [text for text in SAID if text not in shown_text] == []


@pytest.mark.parametrize("failures", [[HookDown()], [HookDown(), Saturated(), HookDown()]], ids=["one", "several"])
async def test_the_answer_of_who_can_wait_is_kept_until_the_hook_has_seen_it(
    monkeypatch: pytest.MonkeyPatch, failures: list[XylemError]
) -> None:
    """A line's was computed again, and charged again, each time that the hook was down."""
    monkeypatch.setattr("app.dispatch.answering.inspection.pause_s", lambda _: 0)
    hook = Hook(*failures)
    assert await inspection(hook).deltas(reading(), patient=True) == ANSWER
    assert [view["answers"] for view in hook.shown] == [["fish"]] * (len(failures) + 1)
    with pytest.raises(type(failures[0])):
        await inspection(Hook(*failures)).deltas(reading(), patient=False)


async def test_who_can_wait_is_refused_all_the_same_and_not_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContentRefused):
        await inspection(Hook(ContentRefused())).deltas(reading(), patient=True)
    monkeypatch.setattr("app.dispatch.answering.inspection.pause_s", lambda _: 3600)
    with pytest.raises(DeadlineOver):
        await inspection(Hook(HookDown()), left_s=0.05).deltas(reading(), patient=True)


async def test_nobody_waits_for_the_hook_beyond_the_requests_time() -> None:
    with pytest.raises(DeadlineOver):
        await inspection(Hook(silent=True), left_s=0.05).prompt()


async def test_who_has_left_is_not_inspected_any_more() -> None:
    hook = Hook(silent=True)
    abandoned_inspection = inspection(hook)
    tasks = [asyncio.create_task(abandoned_inspection.prompt())]
    await hook.is_asked.wait()
    abandoned_inspection.end(Cancelled())
    tasks.append(asyncio.create_task(abandoned_inspection.deltas(reading(), patient=False)))
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [Cancelled, Cancelled]
    assert len(hook.shown) == 1


async def test_a_request_whose_client_leaves_while_its_prompt_is_inspected_is_not_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a request had its seat until the hook answered, and was placed and charged then."""
    monkeypatch.setattr("app.dispatch.answering.generation._WATCH_AFTER_S", 0)
    hook = Hook(silent=True)
    dispatcher = MagicMock(
        Dispatcher, api=ApiId("a"), hook=hook, usage=None, recorder=None, traffic=None, timelines=Timelines(),
        token_redis=0,
    )  # fmt: skip

    async def leaves() -> None:
        await hook.is_asked.wait()

    with pytest.raises(Cancelled):
        async with Generation(plan(), dispatcher=dispatcher, client_left=leaves):
            pass
    dispatcher.send.assert_not_called()


def test_the_hook_is_asked_again_less_and_less_often() -> None:
    pauses = [pause_s(failures) for failures in range(1, 5000)]
    assert (pauses[:4], sorted(pauses), pauses[-1]) == ([1, 2, 4, 8], pauses, content_hook._LONGEST_PAUSE_S)
