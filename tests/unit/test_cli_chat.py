"""`xylem chat` reads the API's stream."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from typer.testing import CliRunner, Result

from app.cli.chat import Options, Speed, stream
from app.cli.client import ApiError
from app.cli.conversation import line_reader
from app.cli.main import cli

_OPTIONS: Options = {"model": "mock"}
_MESSAGES = [{"role": "user", "content": "hello"}]


_Client = httpx.Client


def _client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return _Client(base_url="http://test", transport=httpx.MockTransport(answer))


def test_the_pieces_of_an_answer_come_in_order() -> None:
    """Chunks without text (the role, the usage) add nothing; comments are skipped."""
    body = (
        'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n: still here\n\n'
        'data: {"choices": [{"delta": {"content": "Par"}}]}\n\ndata: {"choices": [{"delta": {"content": "is"}}]}\n\n'
        'data: {"choices": []}\n\ndata: [DONE]\n\n'
    )
    with _client(lambda _: httpx.Response(200, text=body)) as client:
        assert "".join(stream(client, _OPTIONS, _MESSAGES, Speed(0))) == "Paris"


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_answer_may_have_any_character(size: int, end: str) -> None:
    """An event's lines end with LF or CR LF, and not where Python's do."""
    text = "a\u2028b\u2029c\x85d\x1ce\u00e9f\U0001f600"
    chunk = json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False)
    body = f"data: {chunk}{end}{end}data: [DONE]{end}{end}".encode()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    with _client(lambda _: httpx.Response(200, content=iter(pieces))) as client:
        assert "".join(stream(client, _OPTIONS, _MESSAGES, Speed(0))) == text


def test_an_answer_that_is_cut_off_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Small models may never end by themselves."""
    body = 'data: {"choices": [{"delta": {"content": "on and on"}, "finish_reason": "length"}]}\n\n'
    with _client(lambda _: httpx.Response(200, text=body)) as client:
        assert "".join(stream(client, _OPTIONS, _MESSAGES, Speed(0))) == "on and on"
    assert "cut off" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (httpx.Response(404, json={"error": {"message": "no such model"}}), "no such model"),
        (httpx.Response(200, text='data: {"error": {"message": "the worker died"}}\n\n'), "the worker died"),
        (httpx.Response(502, text="<html>"), "answered 502; is it Xylem?"),
        (httpx.Response(401, json={"error": {"message": "needs a key"}}), "needs a key .--key, or XYLEM_API_KEY"),
    ],
)
def test_a_refusal_is_told_in_the_apis_own_words(response: httpx.Response, reason: str) -> None:
    """A refusal may come before the stream, inside it, or from something that isn't our API."""
    with _client(lambda _: response) as client, pytest.raises(ApiError, match=reason):
        list(stream(client, _OPTIONS, _MESSAGES, Speed(0)))


def _said(*requests: dict[str, Any]) -> str:
    """An answer's stream, with its count of tokens."""
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in requests) + "data: [DONE]\n\n"


ANSWER = _said(
    {"choices": [{"delta": {"content": "Par"}}]},
    {"choices": [{"delta": {"content": "is"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"completion_tokens": 3}},
)


def _chat(monkeypatch: pytest.MonkeyPatch, *argv: str, lines: str = "") -> tuple[list[dict[str, Any]], Result]:
    """The requests of a chat in which these lines are typed, and what it printed."""
    requests: list[dict[str, Any]] = []

    def reply(request: httpx.Request) -> httpx.Response:
        requests.append(json.loads(request.content))
        return httpx.Response(200, text=ANSWER)

    monkeypatch.setattr("httpx.Client", lambda **_: _client(reply))
    result = CliRunner().invoke(cli, ["chat", "--model", "m", *argv], input=lines)
    assert result.exit_code == 0, result.stderr
    return requests, result


def test_a_chat_names_no_length_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with a limit of its own would refuse it, and the model's own limit is as good."""
    ([plain], result) = _chat(monkeypatch, "hello")
    assert "max_tokens" not in plain
    assert (plain["messages"], result.stdout) == ([{"role": "user", "content": "hello"}], "Paris\n")
    ([second], _) = _chat(monkeypatch, "hello", "--max-tokens", "7", "--system", "be brief")
    assert second["max_tokens"] == 7
    assert second["messages"][0] == {"role": "system", "content": "be brief"}


def test_a_conversation_remembers_until_it_is_told_to_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "one\ntwo\n/clear\n/system be kind\n/etc/hosts?\n/help\n/nonsense\n/exit\nnever sent\n"
    requests, result = _chat(monkeypatch, lines=lines)
    contents = [[message["content"] for message in request["messages"]] for request in requests]
    assert contents == [["one"], ["one", "Paris", "two"], ["be kind", "/etc/hosts?"]]
    assert "Alt-Enter" in result.stderr
    assert "there is no /nonsense" in result.stderr


def test_the_time_to_the_first_token_and_the_rate_after_it_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Speed(began=10.0, first=10.25, tokens=11).words(now=12.25) == (
        "first token after 0.25 s, 11 tokens, 5.0 tokens/s"
    )
    assert Speed(began=10.0).words(now=11.0) == ""
    _, result = _chat(monkeypatch, "hello")
    assert re.search(r"first token after 0\.\d\d s, 3 tokens, [\d.]+ tokens/s", result.stderr)


def test_a_question_may_have_several_lines_and_is_in_the_history_of_this_user_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XYLEM_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):
        keyboard.send_text("first\x1b\rsecond\r")  # Alt-Enter, Enter
        assert line_reader()() == "first\nsecond"
        keyboard.send_text("\x1b[A\r")  # the arrow, in a chat that begins later
        assert line_reader()() == "first\nsecond"
    assert (tmp_path / "chat_history").stat().st_mode & 0o077 == 0
