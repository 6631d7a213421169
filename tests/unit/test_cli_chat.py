"""`xylem chat` reads the API's stream."""

import json
from collections.abc import Callable

import httpx
import pytest

from app.cli.chat import Options, stream
from app.cli.client import ApiError

_OPTIONS: Options = {"model": "mock"}
_MESSAGES = [{"role": "user", "content": "hello"}]


def _client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(base_url="http://test", transport=httpx.MockTransport(answer))


def test_the_pieces_of_an_answer_come_in_order() -> None:
    """Chunks without text (the role, the usage) add nothing; comments are skipped."""
    body = (
        'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n: still here\n\n'
        'data: {"choices": [{"delta": {"content": "Par"}}]}\n\ndata: {"choices": [{"delta": {"content": "is"}}]}\n\n'
        'data: {"choices": []}\n\ndata: [DONE]\n\n'
    )
    with _client(lambda _: httpx.Response(200, text=body)) as client:
        assert "".join(stream(client, _OPTIONS, _MESSAGES)) == "Paris"


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_answer_may_have_any_character(size: int, end: str) -> None:
    """An event's lines end with LF or CR LF, and not where Python's do."""
    text = "a\u2028b\u2029c\x85d\x1ce\u00e9f\U0001f600"
    chunk = json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False)
    body = f"data: {chunk}{end}{end}data: [DONE]{end}{end}".encode()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    with _client(lambda _: httpx.Response(200, content=iter(pieces))) as client:
        assert "".join(stream(client, _OPTIONS, _MESSAGES)) == text


def test_an_answer_that_is_cut_off_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Small models may never end by themselves."""
    body = 'data: {"choices": [{"delta": {"content": "on and on"}, "finish_reason": "length"}]}\n\n'
    with _client(lambda _: httpx.Response(200, text=body)) as client:
        assert "".join(stream(client, _OPTIONS | {"max_tokens": 3}, _MESSAGES)) == "on and on"
    assert "cut off after 3 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (httpx.Response(404, json={"error": {"message": "no such model"}}), "no such model"),
        (httpx.Response(200, text='data: {"error": {"message": "the worker died"}}\n\n'), "the worker died"),
        (httpx.Response(502, text="<html>"), "answered 502; is it Xylem?"),
    ],
)
def test_a_refusal_is_told_in_the_apis_own_words(response: httpx.Response, reason: str) -> None:
    """A refusal may come before the stream, inside it, or from something that isn't our API."""
    with _client(lambda _: response) as client, pytest.raises(ApiError, match=reason):
        list(stream(client, _OPTIONS, _MESSAGES))
