"""Bounds on the number of values in a large body, checked before any is built."""

import json
import threading
import time
from typing import Any

import pytest

from app.anthropic.schemas import MessagesRequest
from app.errors import BodyTooLarge, RequestError
from app.openai.responses.schemas import ResponseRequest
from app.openai.schemas import ChatRequest, CompletionRequest
from app.openai.token_generation import GenerateRequest
from app.schemas import validation
from app.schemas.validation import check_values, parse, parse_off_loop, validated
from tests.refusals import refused

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
    """The length of each doesn't matter."""
    with pytest.raises(BodyTooLarge, match=str(MOST)):
        check_values(raw, MOST)


def test_as_many_values_as_there_may_be_are_taken() -> None:
    """The limit is exact."""
    check_values(json.dumps([1] * MOST).encode(), MOST)
    with pytest.raises(BodyTooLarge):
        check_values(json.dumps([1] * (MOST + 1)).encode(), MOST)


@pytest.mark.parametrize("text", ['",' * 9, "\\" * 9, '\\",[' * 5, '\\\\"' * 5])
def test_a_body_is_looked_at_in_pieces_that_cut_no_escape(text: str) -> None:
    """Wherever in one they would."""
    for before in range(2**16 - 100, 2**16):
        raw = body(prompt="x" * before + text, stop=["a"] * (MOST - 2))
        check_values(raw, MOST)
        with pytest.raises(BodyTooLarge):
            check_values(raw, MOST - 1)


def test_of_too_many_values_no_more_are_looked_at() -> None:
    """The measure is the CPU time of one thread, compared with that for a sixteenth of the body."""

    def spent(raw: bytes) -> float:
        began = time.thread_time()
        with pytest.raises(BodyTooLarge):
            check_values(raw, 2**18)
        return time.thread_time() - began

    some = b"[" + b"1," * 2**19
    assert min(spent(some * 16) for _ in range(5)) < 4 * min(spent(some) for _ in range(5))


def test_as_many_fields_as_there_may_be_are_taken() -> None:
    """The parser holds up all other threads for four times as long as with as many numbers."""
    fields = 3 * 2**15
    check_values(json.dumps(dict.fromkeys(range(fields))).encode(), 2**18)
    with pytest.raises(BodyTooLarge, match=str(fields)):
        check_values(json.dumps(dict.fromkeys(range(fields + 1))).encode(), 2**18)
    short = b"{" + b'"":1,' * fields + b'"":1}'  # which is counted in one go
    assert len(short) < 2**19
    with pytest.raises(BodyTooLarge, match=str(fields)):
        check_values(short, 2**18)


async def test_a_longer_context_takes_more_token_ids() -> None:
    """All of a prompt may be ids."""
    raw = body(prompt=[1] * 400_000)
    with pytest.raises(BodyTooLarge):
        await parse_off_loop(CompletionRequest, raw)
    request = await parse_off_loop(CompletionRequest, raw, 400_000)
    assert len(request.prompt) == 400_000


async def test_what_has_too_many_values_is_named() -> None:
    raw = b'{"items":' + b"[" * (2**15 + 1)
    for what, message in (({}, "^The body has"), ({"what": "The conversation before"}, "^The conversation before has")):
        with pytest.raises(BodyTooLarge, match=message):
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
    """A thread parses it: fields are named there too, and unknown ones that are null count as not given."""
    text = "a," * 50_000
    assert (await parse_off_loop(CompletionRequest, body(prompt=text, x=None))).prompt == text
    with refused("top_p"):
        await parse_off_loop(CompletionRequest, body(prompt=text, top_p=2))


def test_the_name_of_a_field_is_cut() -> None:
    """The name is the client's, and may be megabytes."""
    with pytest.raises(RequestError) as error:
        parse(CompletionRequest, body(prompt="a", **{"x" * 10**6: 1}))
    assert len(error.value.message) < 300
    assert error.value.param == "x" * 200


def named(schema: Any, **fields: Any) -> tuple[str | None, str]:
    """The field that an error names, and why."""
    with pytest.raises(RequestError) as error:
        parse(schema, json.dumps({"model": "m"} | fields).encode()).check()
    message = error.value.message
    return error.value.param, message.removeprefix(f"'{error.value.param}'").removeprefix(": ").rstrip(".")


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


PICTURE = {"type": "image", "source": {"type": "url", "url": "https://x"}}
TEXT = {"type": "text", "text": "q"}
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {}}}


@pytest.mark.parametrize(("schema", "fields", "param"), [
    (ChatRequest, {"messages": user(TEXT | {"other": 1})}, "messages.0.content.0.other"),
    (ChatRequest, {"messages": user({"type": "text"})}, "messages.0.content.0.text"),
    (ChatRequest, {"messages": user({"type": "image_url", "image_url": {"url": "x", "no": 1}})},
     "messages.0.content.0.image_url.no"),
    (ChatRequest, {"messages": user({"type": "image_url", "image_url": {}})}, "messages.0.content.0.image_url.url"),
    (ChatRequest, {"messages": user(TEXT), "response_format": SCHEMA | {"other": 1}}, "response_format.other"),
    (MessagesRequest, {"messages": user(PICTURE | {"source": PICTURE["source"] | {"other": 1}}), "max_tokens": 1},
     "messages.0.content.0.source.other"),
])  # fmt: skip
def test_a_field_of_an_object_whose_type_is_a_fields_name_is_named(schema: Any, fields: Any, param: str) -> None:
    """`text` is both a type of parts and a field of them: what is wrong beside it is not the text."""
    assert named(schema, **fields)[0] == param


@pytest.mark.parametrize(("schema", "fields"), [
    (ChatRequest, {"messages": user(TEXT | {"cache_control": None, "other": None})}),
    (ChatRequest, {"messages": user(TEXT), "response_format": SCHEMA | {"other": None}}),
    (ChatRequest, {"messages": user(TEXT | {"cache_control": {"type": "ephemeral"}, "prompt_cache_breakpoint": {}})}),
    (MessagesRequest, {"messages": user(PICTURE | {"source": PICTURE["source"] | {"other": None}}), "max_tokens": 1}),
    (ResponseRequest, {"input": user({"type": "input_text", "text": "q", "prompt_cache_breakpoint": {"mode": "x"}})}),
    (ResponseRequest, {"input": "x", "tools": [{"type": "function", "name": "f", "cache_control": {}, "other": None}]}),
])  # fmt: skip
def test_what_is_null_within_parts_and_what_says_where_to_cache_changes_nothing(schema: Any, fields: Any) -> None:
    parse(schema, json.dumps({"model": "m"} | fields).encode()).check()


@pytest.mark.parametrize(("fields", "param", "why"), [
    ({"stop": [""]}, "stop.0", "String should have at least 1 character"),
    ({"stop": ["x"] * 17}, "stop", "List should have at most 16 items after validation, not 17"),
    ({"stop": 5}, "stop", "Input should be a valid string or a valid array"),
    ({"prompt": [2**64]}, "prompt.0", "Input should be less than 4294967296"),
    ({"prompt": [[1, -2]]}, "prompt.0.1", "Input should be greater than or equal to 0"),
    ({"prompt": [[1], "x"]}, "prompt.1", "Input should be a valid array"),
])  # fmt: skip
def test_a_value_of_several_types_is_refused_for_its_own_reason(fields: Any, param: str, why: str) -> None:
    """The requirements of the first type are not the reason."""
    assert named(CompletionRequest, **({"prompt": "x"} | fields)) == (param, why)


def test_content_that_is_no_content_is_told_what_it_may_be() -> None:
    error = named(ChatRequest, messages=[{"role": "user", "content": 5}])
    assert error == ("messages.0.content", "Input should be a valid array or a valid string")


def test_of_a_document_with_too_many_wrong_fields_not_each_is_looked_at() -> None:
    """200,000 of them took the event loop a second."""
    wrong = {f"x{i}": 1 for i in range(1001)}
    with pytest.raises(RequestError, match="More than 1000 fields are wrong"):
        validated(ChatRequest, {"messages": [], **wrong})
    with refused("sampling_params"):
        parse(GenerateRequest, body(token_ids=[1], sampling_params=wrong))
