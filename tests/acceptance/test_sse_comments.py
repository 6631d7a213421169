"""No stream is silent: comments come while the engine, the fleet or Redis lets it wait, and no event is changed."""

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.fleet import Fleet
from tests.serving import client_of, standing_still
from tests.stack import mock_pool

POOL = "decode-pool-a"
TEXT, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
OF_ALL: dict[str, Any] = {"model": "mock", "seed": 7, "ignore_eos": True, "stream": True}
OF_TEXT = OF_ALL | {"prompt": "A fox went out", "max_tokens": 100}
OF_CHAT = OF_ALL | {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
OF_RESPONSE = OF_ALL | {"input": "hi", "max_output_tokens": 100}
KEPT = {"x-xylem-resumable": "1"}
STREAMS = {
    "text": (TEXT, OF_TEXT, {}),
    "texts": (TEXT, OF_TEXT | {"prompt": ["A fox", "A goose"], "n": 2}, {}),
    "echo": (TEXT, OF_TEXT | {"echo": True}, {}),
    "chat": (CHAT, OF_CHAT, {}),
    "kept chat": (CHAT, OF_CHAT, KEPT),
    "response": (RESPONSES, OF_RESPONSE, {}),
    "response kept nowhere": (RESPONSES, OF_RESPONSE | {"store": False}, {}),
    "response in the background": (RESPONSES, OF_RESPONSE | {"background": True}, {}),
}


@contextmanager
def serving(directory: Path, pool: dict[str, Any], **env: str) -> Iterator[Fleet]:
    """One replica and one worker, whose lease outlasts its standing still."""
    env = {"XYLEM_SSE_PING_S": "0.2", "XYLEM_LEASE_TTL_S": "60", **env}
    with Fleet(directory / "fleet", {POOL: pool}, apis=1, workers=1, **env) as f:
        yield f
        assert "Traceback" not in f.stack.log("api-0")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with serving(tmp_path_factory.mktemp("sse"), mock_pool(step_ms=10.0)) as f:
        yield f


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet with room for one request."""
    with serving(tmp_path_factory.mktemp("small"), mock_pool(max_running=1), XYLEM_MAX_QUEUED="0") as f:
        yield f


@contextmanager
def streamed(fleet: Fleet, path: str, body: dict[str, Any], headers: dict[str, str]) -> Iterator[Iterator[str]]:
    """The lines of a stream; GET without a body."""
    method, arguments = ("POST", {"json": body}) if body else ("GET", {})
    with httpx.stream(method, fleet.urls()[0] + path, headers=headers, timeout=30, **arguments) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer.iter_lines()


def three_comments(lines: Iterator[str]) -> list[str]:
    """The lines that came until there were three comments in a row."""
    new_lines = [next(lines)]
    while [line for line in new_lines if line][-3:] != [": waiting"] * 3:
        new_lines.append(next(lines))
    return new_lines


def events(lines: Iterable[str]) -> list[dict[str, Any] | str]:
    """All but comments. Each field stands alone in its line, each event ends with an empty one."""
    contents: list[dict[str, Any] | str] = []
    for line in lines:
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            contents.append(data if data == "[DONE]" else json.loads(data))
        else:
            assert not line or line == ": waiting" or line.startswith(("id: ", "event: ")), line
    return contents


def text_of(found: list[dict[str, Any] | str]) -> dict[int, str]:
    """The text of each choice, whichever endpoint it is."""
    texts: dict[int, str] = {}
    for event in found:
        if isinstance(event, str):
            continue
        assert "error" not in event, event
        for choice in event.get("choices", ()):
            piece = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
        if event.get("type") == "response.output_text.delta":
            texts[0] = texts.get(0, "") + event["delta"]
    return texts


def whole(fleet: Fleet, name: str) -> dict[int, str]:
    with streamed(fleet, *STREAMS[name]) as lines:
        return text_of(events(lines))


@pytest.mark.parametrize("name", STREAMS)
def test_comments_come_while_the_engine_says_nothing(fleet: Fleet, name: str) -> None:
    """The comments come before its first token, and between two of them."""
    reference = whole(fleet, name)
    worker = fleet.stack.names[fleet.worker_names[0][0]]
    with ExitStack() as stream:
        with standing_still(worker.pid):
            lines = stream.enter_context(streamed(fleet, *STREAMS[name]))
            all_lines = three_comments(lines)
            assert not any(text_of(events(all_lines)).values())
        all_lines += [next(lines) for _ in range(12)]
        with standing_still(worker.pid):
            all_lines += three_comments(lines)
        all_lines += lines
    assert text_of(events(all_lines)) == reference


def test_a_response_that_is_followed_later_is_not_silent_either(fleet: Fleet) -> None:
    """Its events have the numbers that they have for everybody."""
    with streamed(fleet, *STREAMS["response in the background"]) as lines:
        first = [next(lines) for _ in range(12)]
        first_event = events(first)[0]
        assert isinstance(first_event, dict)
        path = f"{RESPONSES}/{first_event['response']['id']}?stream=true&starting_after=2"
        with standing_still(fleet.stack.names[fleet.worker_names[0][0]].pid), streamed(fleet, path, {}, {}) as later:
            all_lines = three_comments(later)
    with streamed(fleet, path, {}, {}) as later:
        all_lines = [*later]
    numbers = [event["sequence_number"] for event in events(all_lines) if isinstance(event, dict)]
    assert len(numbers) > 10
    assert numbers == list(range(3, 3 + len(numbers)))


@pytest.mark.parametrize("name", ["text", "kept chat", "response", "response in the background"])
def test_comments_come_while_redis_stands_still(fleet: Fleet, name: str) -> None:
    """The comments come in a stream that has begun, and in one that begins meanwhile.

    The latter is answered when Redis is back.
    """
    reference = whole(fleet, name)
    with streamed(fleet, *STREAMS[name]) as lines, ExitStack() as other:
        all_lines = [next(lines) for _ in range(12)]
        assert fleet.redis_process
        with standing_still(fleet.redis_process.pid):
            all_lines += three_comments(lines)
            later = other.enter_context(streamed(fleet, *STREAMS[name]))
            came = three_comments(later)
            assert not any(text_of(events(came)).values())
        all_lines += lines
        came += later
    assert text_of(events(all_lines)) == reference
    assert text_of(events(came)) == reference


@pytest.mark.parametrize("name", ["text", "chat", "kept chat", "response"])
def test_comments_come_while_a_request_is_held(small: Fleet, name: str) -> None:
    reference = whole(small, name)
    with streamed(small, TEXT, OF_TEXT | {"max_tokens": 1900}, {}) as other:
        next(other)
        with streamed(small, *STREAMS[name]) as lines:
            all_lines = three_comments(lines)
            assert not any(text_of(events(all_lines)).values())
            assert "xylem_requests_held 1.0" in httpx.get(f"{small.urls()[0]}/metrics").text
            other.close()  # type: ignore[attr-defined]
            all_lines += lines
    assert text_of(events(all_lines)) == reference


def test_an_error_behind_comments_is_an_event(small: Fleet) -> None:
    """Its headers are out: the deadline passes while the request is held."""
    with streamed(small, TEXT, OF_TEXT | {"max_tokens": 1900}, {}) as other:
        next(other)
        for name in ("text", "kept chat", "response"):
            path, body, headers = STREAMS[name]
            with streamed(small, path, body | {"timeout": 1.5}, headers) as lines:
                contents = events(lines)
            assert "deadline_exceeded" in json.dumps(contents[-1])


def test_the_openai_client_takes_no_notice(fleet: Fleet) -> None:
    """The client takes an empty line behind an event with an id for an event."""
    worker = fleet.stack.names[fleet.worker_names[0][0]]
    ours = {"seed": 7, "ignore_eos": True}

    def openais(body: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in body.items() if k not in ours} | {"extra_body": ours}

    with client_of(fleet.urls()[0]) as c:

        def chat(**headers: str) -> str:
            chunks = c.chat.completions.create(**openais(OF_CHAT), extra_headers=headers)
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

        def response() -> str:
            pieces = c.responses.create(**openais(OF_RESPONSE))
            return "".join(e.delta for e in pieces if e.type == "response.output_text.delta")

        with ThreadPoolExecutor(3) as threads:
            references = [chat(), chat(), response()]
            with standing_still(worker.pid):
                futures = [threads.submit(chat), threads.submit(chat, **KEPT), threads.submit(response)]
                time.sleep(1)
            assert [one.result() for one in futures] == references
