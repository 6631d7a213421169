"""Bodies of clients: any is a request, or a refusal that names what is wrong."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.anthropic.schemas import CountRequest, MessagesRequest
from app.api.operations.pool_schemas import LimitChanges
from app.errors import RequestError
from app.messages.wire import encode
from app.openai.responses.schemas import ResponseRequest, Retrieval
from app.openai.schemas import (
    ChatRequest,
    CompletionRequest,
    Conversation,
    DetokenizeRequest,
    TokenizeRequest,
)
from app.schemas.validation import parse
from tests.fuzz.damage import damaged
from tests.fuzz.examples import examples

BODIES: list[Any] = [
    ChatRequest, CompletionRequest, ResponseRequest, Retrieval, TokenizeRequest, DetokenizeRequest, LimitChanges,
    CountRequest, MessagesRequest,
]  # fmt: skip
FIELDS = sorted({name for body in BODIES for name in body.model_fields} | {"role", "content", "type", "text", "x"})
numbers = st.integers() | st.floats() | st.sampled_from([2**31, 2**63, 2**64, -1, 10**400])
scalars = st.none() | st.booleans() | numbers | st.text() | st.sampled_from(["user", "text", "\ud800", "\0"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from(FIELDS), values, max_size=8)
valid = {
    "model": "m",
    "messages": [{"role": "user", "content": "x"}],
    "prompt": "x",
    "tokens": [1],
    "input": "x",
    "max_tokens": 1,
}


@pytest.mark.parametrize("body", BODIES)
@examples(100)
@given(raw=st.one_of(values.map(json.dumps).map(str.encode), damaged(objects.map(json.dumps).map(str.encode))))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"seed": ' + b"9" * 10_000 + b"}")
@example(b'{"x": 1, "seed": ' + b"9" * 10_000 + b"}")
@example(b'{"x": null, "seed": ' + b"9" * 10_000 + b"}")
@example(b'{"x": null, "model": "\\ud800"}')
@example(b'{"x": 1, "model": NaN, "timeout": 1e999}')
@example(b'\xef\xbb\xbf{"x": 1}')
@example('{"x": 1}'.encode("utf-16"))
def test_a_body_is_understood_or_refused(body: Any, raw: bytes) -> None:
    check(body, raw)


@pytest.mark.parametrize("body", BODIES)
@examples(100)
@given(changes=objects)
@example({"top_k": 2**64})
@example({"x": None, "chat_template_kwargs": {"a": "\ud800"}})
@example({"x": None, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"\ud800": {}}}}]})
@example(
    {
        "x": None,
        "messages": [
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {"a": 10**400, "b": "\ud800"}}],
            }
        ],
    }
)
@example({"seed": -(2**63), "priority": 2**31 - 1, "timeout": 1e-300, "logit_bias": {"999999999": 1}})
def test_a_good_request_with_a_strange_field_is_understood_or_refused(body: Any, changes: dict[str, Any]) -> None:
    field_names = {
        name for name, field in body.model_fields.items() if field.annotation is not Any
    }  # with more than one value
    good = {name: value for name, value in valid.items() if name in field_names}
    assert parse(body, json.dumps(good).encode())
    check(body, json.dumps(good | changes).encode())


def check(body: Any, raw: bytes) -> None:
    refusal = ""
    try:
        request = parse(body, raw)
        if isinstance(request, (ResponseRequest, Retrieval, TokenizeRequest)):
            request.check()
        if isinstance(request, ResponseRequest):
            request = request.as_chat()
        if isinstance(request, (CountRequest, MessagesRequest)):
            request = request.chat
        if isinstance(request, (Conversation, CompletionRequest)):
            request.check()
            request.wishes(explain=False)
            encode(request.sampling(16, logprobs=None))
    except RequestError as exc:
        refusal = exc.message + (exc.param or "")
        assert refusal.strip()
    refusal.encode()  # it goes out as UTF-8
