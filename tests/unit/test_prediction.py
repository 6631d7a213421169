"""Speculation: what is counted as accepted of a `prediction`, and of what engines draft."""

import json
from typing import Any
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace

from app.dialects.parts import Content, Part
from app.dispatch.answering.generation import Generation
from app.engines.base import EngineStats
from app.openai.prediction import PredictedChat, PredictedParts, accepted
from app.openai.schemas import ChatRequest
from app.runner.probed_work import ProbedWork
from tests.unit.test_completion_writer import DELTA, call
from workers.engine.worker_metrics import metrics

CODE = list(range(100, 150))


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (CODE, 50),
        (CODE[:20], 20),
        ([], 0),
        ([1, 2, 3], 0),
        ([*CODE[:10], 7, 8, *CODE[10:]], 50 - 2),  # found again after two tokens
        ([*CODE[:10], *CODE[20:]], 50 - 10 - 2),
        ([7, *CODE], 50 - 2),
        (CODE + CODE, 100 - 2),
    ],
)
def test_accepted_are_the_tokens_that_the_prediction_has_next(answer: list[int], count: int) -> None:
    assert accepted(CODE, answer) == count


def test_counting_is_linear() -> None:
    """The text may repeat in any way: an ordinary comparison of these would take minutes."""
    assert accepted([5] * 100_000, [5] * 100_000) == 100_000
    assert accepted([5] * 100_000, [6] * 100_000) == 0


def test_without_a_prediction_nothing_is_accepted() -> None:
    assert accepted([], CODE) == 0


class Plain:
    """A parser that finds content only."""

    def feed(self, text: str) -> list[Part]:
        return [Content(text)]

    def close(self) -> list[Part]:
        return []


def body(**fields: Any) -> ChatRequest:
    base_fields = {"model": "m", "messages": [{"role": "user", "content": "?"}], **fields}
    return ChatRequest.model_validate(base_fields | {"prediction": {"type": "content", "content": "one two three"}})


def tokens(of: Generation) -> list[int]:
    return of.model.tokenizer.encode("one two three", add_special_tokens=False)


@pytest.mark.parametrize("parsed", [False, True])
async def test_the_usage_says_how_much_of_it_came(parsed: bool) -> None:
    """All choices count, whole and streamed."""
    of = call()
    answer_tokens = tokens(of)
    options = {"stream": True, "stream_options": {"include_usage": True}}

    def writer(**fields: Any) -> Any:
        return PredictedParts(of, body(**fields), Plain) if parsed else PredictedChat(of, body(**fields))

    whole = writer()
    whole.answer(
        [(0, replace(DELTA, tokens=answer_tokens, finish="stop")), (1, replace(DELTA, tokens=[1], finish="stop"))]
    )
    details = whole.usage()["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == len(answer_tokens)
    assert details["rejected_prediction_tokens"] == len(answer_tokens)

    stream_writer = writer(**options)
    for token in answer_tokens[:-1]:
        stream_writer.delta(0, replace(DELTA, tokens=[token]))
    await stream_writer.settle()
    usage = json.loads(stream_writer.last().removeprefix(b"data: ").partition(b"\n")[0])["usage"]
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == len(answer_tokens) - 1
    assert usage["completion_tokens_details"]["rejected_prediction_tokens"] == 1


@pytest.mark.parametrize("accepted", [(), (3, 1)])
def test_metrics_tell_what_was_accepted_at_each_position(accepted: tuple[int, ...]) -> None:
    """Only of engines that speculate."""
    stats = EngineStats(drafts=len(accepted) * 2, drafted_tokens=8, accepted_tokens=accepted)
    values = {metric.name: metric.value for metric in metrics(MagicMock(probed=ProbedWork()), stats)}
    draft_values = {name: value for name, value in values.items() if "draft" in name or "accepted" in name}
    if not accepted:
        assert draft_values == {}
        return
    assert draft_values == {
        "xylem_worker_drafts": 4,
        "xylem_worker_drafted_tokens": 8,
        "xylem_worker_accepted_tokens_1": 3,
        "xylem_worker_accepted_tokens_2": 1,
    }
