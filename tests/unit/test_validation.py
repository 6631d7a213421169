"""How many values a large body may have, before any is built."""

import json
import threading
from typing import Any

import pytest

from app.errors import BodyTooLarge, RequestError
from app.openai import validation
from app.openai.schemas import CompletionRequest
from app.openai.validation import check_values, parse, parse_off_loop

MOST = 1000


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


@pytest.mark.parametrize("text", [",[{" * 50_000, '",' * 50_000, "\\" * 9999, '\\",\\\\",' * 9999, "\u4e2d,[" * 40_000])
def test_commas_and_brackets_in_a_text_are_no_values(text: str) -> None:
    """Source code and tables have more commas and brackets than any request."""
    check_values(body(prompt=text), MOST)
    check_values(json.dumps({"prompt": text}, ensure_ascii=False).encode(), MOST)


@pytest.mark.parametrize("raw", [
    body(prompt=[1] * (MOST + 1)),
    body(prompt=["a,b"] * (MOST + 1)),
    body(prompt=['",\\'] * (MOST + 1)),
    body(**{str(i): None for i in range(MOST + 1)}),
    b"[" * (2**15 + 1),
    b'{"a":' * (2**15 + 1),
    b'""' * (4 * MOST + 1) + b"," * MOST,
])  # fmt: skip
def test_more_values_than_there_may_be_are_refused(raw: bytes) -> None:
    """However short each is."""
    with pytest.raises(BodyTooLarge, match=str(MOST)):
        check_values(raw, MOST)


def test_as_many_values_as_there_may_be_are_taken() -> None:
    """The limit is exact."""
    check_values(json.dumps([1] * MOST).encode(), MOST)
    with pytest.raises(BodyTooLarge):
        check_values(json.dumps([1] * (MOST + 1)).encode(), MOST)


async def test_a_longer_context_takes_more_token_ids() -> None:
    """All of a prompt may be ids."""
    raw = body(prompt=[1] * 400_000)
    with pytest.raises(BodyTooLarge):
        await parse_off_loop(CompletionRequest, raw)
    taken = await parse_off_loop(CompletionRequest, raw, 400_000)
    assert len(taken.prompt) == 400_000


async def test_what_has_too_many_values_is_named() -> None:
    raw = b'{"items":' + b"[" * (2**15 + 1)
    for what, said in (({}, "^The body has"), ({"what": "The conversation before"}, "^The conversation before has")):
        with pytest.raises(BodyTooLarge, match=said):
            await parse_off_loop(CompletionRequest, raw, **what)


@pytest.mark.parametrize(("raw", "thread"), [
    (body(prompt="All of it is one text. " * 5000), "MainThread"),
    (body(prompt="All of it is one text. " * 6000), "parsing_0"),
    (body(prompt=[1] * 5000), "MainThread"),
    (body(prompt=[1] * 8000), "parsing_0"),
])  # fmt: skip
async def test_what_takes_long_is_parsed_in_a_thread(raw: bytes, thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values take long, not the bytes of a text."""
    monkeypatch.setattr(validation, "parse", lambda *_: threading.current_thread().name)
    assert await parse_off_loop(CompletionRequest, raw) == thread


async def test_a_large_body_is_what_it_was_as_a_small_one() -> None:
    """In a thread, fields are named too, and unknown ones that are null are not given."""
    text = "a," * 50_000
    assert (await parse_off_loop(CompletionRequest, body(prompt=text, x=None))).prompt == text
    with pytest.raises(RequestError) as refused:
        await parse_off_loop(CompletionRequest, body(prompt=text, top_p=2))
    assert refused.value.param == "top_p"


def test_the_name_of_a_field_is_cut() -> None:
    """It is the client's, and may be megabytes."""
    with pytest.raises(RequestError) as refused:
        parse(CompletionRequest, body(prompt="a", **{"x" * 10**6: 1}))
    assert len(refused.value.message) < 300
    assert refused.value.param == "x" * 200
