"""Tests that what an earlier stage of a pipeline writes comes as it is written.

Real processes, the official client, scripted mocks.
"""

import os
import signal
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI, Stream
from openai.types.chat import ChatCompletionChunk

from tests.acceptance.test_document import declared
from tests.acceptance.test_pipelines import CHATS, asked, events, post
from tests.serving import revive, served_by
from tests.stack import Stack, all_free, leases, metric, mock_pool, wait_until

WRITERS, THINKERS, ANSWERERS = "writers", "thinkers", "answerers"
STEP_S, WORDS = 0.02, 60
SLOW, AGAIN, PONDERED, ANSWER = " ".join(["slowly"] * WORDS), "All slow.", "It depends, and not.", "Quickly."
SCRIPT = {
    "Describe: slow": SLOW,
    "Describe: nothing": " ",
    "Describe: endless": "slowly " * 2000,
    "Rephrase": AGAIN,
}
DESCRIBE: dict[str, Any] = {"model": "writer", "template": "Describe: {input}"}
LAST: dict[str, Any] = {"model": "answerer"}
PIPELINES: dict[str, list[dict[str, Any]]] = {
    "shown": [DESCRIBE, LAST],
    "hidden": [DESCRIBE | {"show": False}, {"model": "writer", "template": "Rephrase {input}"}, LAST],
    "ponder": [{"model": "thinker"}, LAST],
}
POOLS = {
    WRITERS: mock_pool(model="writer", step_ms=1000 * STEP_S, script=SCRIPT),
    THINKERS: mock_pool(model="thinker", script={"": f"<think>Hm, what now?</think>{PONDERED}"}) | {"reasoning": {}},
    ANSWERERS: mock_pool(model="answerer", script={"": ANSWER}),
}


WORKERS = {"writers-1": "writers", "writers-2": "writers", THINKERS: THINKERS, ANSWERERS: ANSWERERS}
served = served_by(POOLS, WORKERS, more={"pipelines": {name: {"stages": stages} for name, stages in PIPELINES.items()}})


def streamed(client: OpenAI, model: str, text: str, **more: Any) -> Stream[ChatCompletionChunk]:
    stream = client.chat.completions.create(model=model, messages=asked(text), stream=True, **more)
    assert isinstance(stream, Stream)
    return stream


def told(chunk: ChatCompletionChunk) -> dict[str, Any]:
    return (chunk.model_extra or {}).get("stage") or {}


def by_stage(chunks: list[ChatCompletionChunk]) -> dict[int, tuple[str, str]]:
    """The pieces of each stage together, and all of it as it was told behind them."""
    texts: dict[int, tuple[str, str]] = {}
    for stage in filter(None, map(told, chunks)):
        pieces, output = texts.get(stage["stage"], ("", ""))
        assert not output, "it has ended"
        texts[stage["stage"]] = pieces + stage.get("delta", ""), stage.get("output", "")
    return texts


def content(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_what_a_stage_writes_comes_as_it_is_written(client: OpenAI) -> None:
    """The chunks say nothing else and come before the answer; tokens count as those of a whole answer."""
    chunks = list(streamed(client, "shown", "slow", stream_options={"include_usage": True}))
    pieces = [told(c) for c in chunks if "delta" in told(c)]
    assert len(pieces) > WORDS / 4
    assert all(piece == {"stage": 1, "model": "writer", "delta": piece["delta"]} for piece in pieces)
    assert told(chunks[len(pieces)]) == {"stage": 1, "model": "writer", "output": SLOW}
    assert by_stage(chunks) == {1: (SLOW, SLOW)}
    for chunk in chunks[: len(pieces) + 1]:
        (choice,) = chunk.choices
        assert (choice.index, choice.delta.model_dump(exclude_unset=True), choice.finish_reason) == (0, {}, None)
    assert content(chunks) == ANSWER
    assert {(c.id, c.model) for c in chunks} == {(chunks[0].id, "shown")}
    whole = client.chat.completions.create(model="shown", messages=asked("slow"))
    stream_usage, usage = chunks[-1].usage, whole.usage
    assert stream_usage is not None
    assert usage is not None
    assert (stream_usage.prompt_tokens, stream_usage.completion_tokens) == (
        usage.prompt_tokens,
        usage.completion_tokens,
    )
    assert (whole.model_extra or {})["stages"] == [{"stage": 1, "model": "writer", "output": SLOW}]


def test_a_stages_reasoning_is_not_told(client: OpenAI, served: Stack) -> None:
    chunks = list(streamed(client, "ponder", "Well?"))
    assert by_stage(chunks) == {1: (PONDERED, PONDERED)}
    assert sum("delta" in told(c) for c in chunks) > 1
    assert content(chunks) == ANSWER
    assert "what now" not in post(served, CHATS, "ponder", stream=True).text


def test_a_stage_that_is_not_shown_is_not_told_either(client: OpenAI) -> None:
    chunks = list(streamed(client, "hidden", "slow"))
    assert by_stage(chunks) == {2: (AGAIN, AGAIN)}
    assert content(chunks) == ANSWER


@pytest.mark.parametrize(("model", "stream"), [("hidden", True), ("shown", False)])
def test_what_nobody_sees_come_is_sent_whole(served: Stack, model: str, stream: bool) -> None:
    """The first token that the API gets comes with the last one."""
    before = first_tokens(served, "writer")
    assert post(served, CHATS, model, stream=stream, messages=asked("slow")).status_code == 200
    assert first_tokens(served, "writer") - before > STEP_S * WORDS * 3 / 4


def first_tokens(s: Stack, model: str) -> float:
    """The seconds until them, of all requests to the model so far."""
    lines = httpx.get(f"{s.url}/metrics").text.splitlines()
    start = f'xylem_ttft_seconds_sum{{model="{model}"}} '
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


@pytest.mark.parametrize(
    ("text", "body", "code"), [("endless", {"timeout": 2}, "deadline_exceeded"), ("nothing", {}, "engine_failed")]
)
def test_an_error_behind_pieces_is_the_streams_last_event(
    served: Stack, text: str, body: dict[str, Any], code: str
) -> None:
    """The error names the stage: the deadline is that of all."""
    *pieces, last = events(post(served, CHATS, "shown", stream=True, messages=asked(text), **body))
    assert "delta" in pieces[0]["stage"]
    assert last["error"]["code"] == code
    assert last["error"]["message"].startswith("Stage 1 of 'shown', the model 'writer': ")
    wait_until(lambda: all_free(served, WRITERS, ANSWERERS), "nothing is left")


def test_the_client_hears_of_an_error_behind_pieces(client: OpenAI) -> None:
    with pytest.raises(openai.APIError, match="Stage 1 of 'shown'"):
        list(streamed(client, "shown", "endless", extra_body={"timeout": 2}))


def test_a_client_that_leaves_stops_the_stage_that_writes(served: Stack, client: OpenAI) -> None:
    """No other stage begins."""
    before = metric(served, ANSWERERS, "steps")
    with streamed(client, "shown", "endless") as stream:
        assert told(next(stream))["stage"] == 1
    wait_until(lambda: all_free(served, WRITERS), "nothing is left")
    assert metric(served, ANSWERERS, "steps") == before


def test_pieces_go_on_when_a_worker_dies(served: Stack, client: OpenAI) -> None:
    """None is lost, and none comes twice."""
    chunks: list[ChatCompletionChunk] = []
    for chunk in streamed(client, "shown", "slow"):
        chunks.append(chunk)
        if len(chunks) == WORDS / 6:
            busy = wait_until(lambda: [le for le in leases(served, WRITERS) if le.load.running], "its stage is at work")
            os.kill(busy[0].worker.pid, signal.SIGKILL)
    assert by_stage(chunks) == {1: (SLOW, SLOW)}
    assert content(chunks) == ANSWER
    revive(served)


def test_pieces_are_as_declared(served: Stack) -> None:
    document = httpx.get(f"{served.url}/openapi.json", timeout=60).json()
    shape = declared(document, CHATS, "post", "text/event-stream")
    pieces = events(post(served, CHATS, "shown", stream=True, messages=asked("slow")))
    assert {key for event in pieces for key in event.get("stage", ())} == {"stage", "model", "delta", "output"}
    for event in pieces:
        assert not list(shape.iter_errors(event)), event
    assert not shape.is_valid(pieces[0] | {"stage": {"stage": 1, "model": "writer"}})
