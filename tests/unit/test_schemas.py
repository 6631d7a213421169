"""Bodies that clients may send: each field's bounds, and a refusal that names the field."""

import json
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api.operations.tenant_schemas import NewTenant
from app.errors import RequestError
from app.messages.job import Sampling
from app.openai.responses.schemas import ResponseRequest
from app.openai.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from app.schemas.neutral import NEUTRAL, NEUTRAL_OF_MESSAGES, NEUTRAL_OF_TOKENIZE, neutral
from app.schemas.validation import parse
from tests.refusals import refused

BASE: dict[type, dict[str, Any]] = {
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    CompletionRequest: {"model": "m", "prompt": "hi"},
    ResponseRequest: {"model": "m", "input": "hi"},
    TokenizeRequest: {"model": "m", "prompt": "hi"},
}
BOTH = (ChatRequest, CompletionRequest)
ALL = (*BOTH, ResponseRequest)


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, orjson.dumps(BASE[ChatRequest] | fields))


def text(**fields: Any) -> CompletionRequest:
    return parse(CompletionRequest, orjson.dumps(BASE[CompletionRequest] | fields))


def refusal(schema: type[Any], fields: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as error:
        parse(schema, orjson.dumps(BASE[schema] | fields))
    assert error.value.status == 400
    return error.value


def test_an_earlier_refusal_is_a_text_for_the_model() -> None:
    """OpenAI's clients send an answer back as it came."""
    parts = [{"type": "text", "text": "Hm."}, {"type": "refusal", "refusal": "I can't."}]
    body = chat(messages=[{"role": "assistant", "content": parts}, {"role": "user", "content": "?"}])
    assert body.messages[0].for_template()["content"] == "Hm.\nI can't."
    again = parse(ChatRequest, body.model_dump_json(exclude_none=True).encode())
    assert again.messages[0].for_template() == body.messages[0].for_template()
    whole = chat(messages=[{"role": "assistant", "content": None, "refusal": "I can't."}])
    assert whole.messages[0].for_template()["content"] == "I can't."
    wrong = refusal(ChatRequest, {"messages": [{"role": "user", "content": [parts[1]]}]})
    assert wrong.param == "messages.0.content.0.type"


# field: (values at and inside its bounds, values outside and of other types)
FIELDS: dict[str, tuple[list[Any], list[Any]]] = {
    "max_tokens": ([0, 1, 10**6], [-1, 1.5, "1", True, [1]]),
    "min_tokens": ([0, 7], [-1, 1.5, "1"]),
    "temperature": ([0, 0.7, 2, 2.0], [-0.1, 2.01, "1", True, []]),
    "top_p": ([0.001, 1, 1.0], [0, -1, 1.01, "1"]),
    "top_k": ([-1, 0, 1, 50], [-2, 0.5, "1"]),
    "min_p": ([0, 0.5, 1], [-0.01, 1.01, "0"]),
    "presence_penalty": ([-2, 0, 2], [-2.01, 2.01, "0"]),
    "frequency_penalty": ([-2, 0, 2], [-2.01, 2.01, "0"]),
    "repetition_penalty": ([0.01, 1, 2], [0, -1, 2.01, "1"]),
    "seed": ([0, -1, 2**63 - 1, -(2**63)], [2**63, -(2**63) - 1, 1.5, "1"]),
    "stop": (
        ["x", ["x"], ["x"] * 16, [], ["x" * 4096]],
        ["x" * 4097, ["x" * 4097], "", [""], ["x"] * 17, 1, [1], {"a": 1}],
    ),
    "stop_token_ids": ([[], [0], [2**32 - 1] * 64], [[-1], [2**32], [1] * 65, 1, ["1"], [1.5]]),
    "include_stop_str_in_output": ([True, False], [1, "true"]),
    "ignore_eos": ([True, False], [1, "true"]),
    "n": ([1, 128], [0, 129, 1.5, "1"]),
    "logit_bias": (
        [{}, {"0": 0}, {"5": -100, "6": 100}, dict.fromkeys(map(str, range(4096)), 1)],
        [dict.fromkeys(map(str, range(4097)), 1), {"5": 101}, {"5": -101}, {"5": "1"}, [5], 5],
    ),
    "stream": ([True, False], [1, "true"]),
    "user": (["", "me", "u" * 512], [1, ["me"], "u" * 513]),
    "safety_identifier": (["", "x" * 64], ["x" * 65, 1]),
    "metadata": (
        [{}, {"k" * 64: "v" * 512}, {str(i): "" for i in range(16)}],
        [{"k" * 65: ""}, {"k": "v" * 513}, {str(i): "" for i in range(17)}, {"k": 1}, [], "x"],
    ),
    "priority": ([0, -(2**31), 2**31 - 1], [2**31, -(2**31) - 1, 0.5, "0"]),
    "prompt_cache_key": (["x", "x" * 256], ["", "x" * 257, 1]),
    "cache_salt": (["x", "x" * 256], ["", "x" * 257, 1]),
    "routing": (
        [{}, {"prefill_weight": 0, "temperature": 100}, {"ttft_ms": 0.1, "itl_ms": 20}],
        [{"prefill_weight": -1}, {"temperature": 101}, {"ttft_ms": 0}, {"itl_ms": "1"}, {"policy": "kv"}, 1],
    ),
    "service_tier": (["auto", "default", "flex"], ["priority", "", 1]),
    "timeout": ([0.001, 1, 86_400], [0, -1, 86_401, "1"]),
    "use_beam_search": ([True, False], [1, "true"]),
    "best_of": ([1, 16], [0, 1.5, "1"]),
    "length_penalty": ([-10, 0, 10.0], [-10.1, 11, "1"]),
    "early_stopping": ([True, False, "never"], [1, "always"]),
}
CHAT_FIELDS: dict[str, tuple[list[Any], list[Any]]] = {
    "max_completion_tokens": ([0, 5], [-1, 1.5, "1"]),
    "logprobs": ([True, False], [1, "true"]),
    "prediction": (
        [{"type": "content", "content": "x"}, {"type": "content", "content": [{"type": "text", "text": "x"}]}],
        ["x", {"type": "other"}, {"content": "x"}],
    ),
    "messages": (
        [
            [{"role": role, "content": "x"}] for role in ("system", "developer", "user", "assistant")
        ] + [
            [{"role": "user", "content": ""}],
            [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x", "detail": "high"}}]}],
            [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}],
            [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}]}],
            [{"role": "user", "content": "x", "name": "m" * 256}],
            [{"role": "assistant", "content": None}],
            [{"role": "assistant", "content": "x", "tool_calls": [], "annotations": [], "refusal": None}],
            [{"role": "assistant", "content": None, "refusal": "no"}],
        ],
        [[{"role": "user", "content": "x", "name": "m" * 257}],
         [], "hi", None, [1], [{}], [{"role": "user"}], [{"content": "x"}], [{"role": "tool", "content": "x"}],
         [{"role": "user", "content": 5}], [{"role": "user", "content": None}],
         [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}],
         [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x", "detail": "x"}}]}],
         [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x", "format": "x"}}]}],
         [{"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
         [{"role": "user", "content": "x", "tool_calls": []}],
         [{"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function"}]}]],
    ),
}  # fmt: skip
TEXT_FIELDS: dict[str, tuple[list[Any], list[Any]]] = {
    "prompt": (
        ["x", ["x", "y"], [1, 2], [[1, 2], [3]]],
        [5, {"a": 1}, [-1], [2**32], [[1], "x"], [1.5], ["x", 1]],
    ),
    "prompt_embeds": (["x", ["x", "y"]], [5, {"a": 1}, [1], [["x"]]]),
    "echo": ([True, False], [1, "true"]),
    "add_special_tokens": ([True], [False, "x"]),
    "logprobs": ([0, 20], [-1, 21, True, "1"]),
}
CASES = (
    [(schema, field, *values) for field, values in FIELDS.items() for schema in BOTH]
    + [(ChatRequest, field, *values) for field, values in CHAT_FIELDS.items()]
    + [(CompletionRequest, field, *values) for field, values in TEXT_FIELDS.items()]
)
NAMES = [f"{schema.__name__}-{field}" for schema, field, *_ in CASES]


@pytest.mark.parametrize(("schema", "field", "good", "bad"), CASES, ids=NAMES)
def test_each_field_has_its_bounds(schema: type[Any], field: str, good: list[Any], bad: list[Any]) -> None:
    """A value at the bounds is taken as it is; one beyond them or of another type is refused by the field's name."""
    for value in good:
        body = parse(schema, orjson.dumps(BASE[schema] | {field: value}))
        assert parse(schema, body.understood()) == body, "what is kept of it is as good"
        parsed_value = getattr(body, field)
        assert parsed_value == value or field in ("messages", "routing", "prediction"), value  # these are objects
    for value in bad:
        raw = BASE[schema] | {field: value}
        with pytest.raises(RequestError) as error:
            parse(schema, json.dumps(raw).encode())  # orjson knows no integers over 64 bits
        assert f"'{field}" in error.value.message, (value, error.value.message)
        assert (error.value.param or "").split(".")[0] == field


def test_the_table_has_every_field() -> None:
    """A field that is added has to be added here."""
    special = {"model", "stream_options", "top_logprobs"}
    neutral = set(NEUTRAL)
    assert set(ChatRequest.model_fields) - neutral == (set(FIELDS) | set(CHAT_FIELDS) | special) - neutral
    assert set(CompletionRequest.model_fields) - neutral == (set(FIELDS) | set(TEXT_FIELDS) | special) - neutral


@pytest.mark.parametrize(("schema", "field"), [
    (schema, field) for schema in BOTH for field in (
        "functions", "function_call", "modalities", "audio", "prediction",
        "suffix", "max_token", "temprature",
    )
] + [
    (CompletionRequest, field) for field in (
        "chat_template", "store", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort",
        "top-p", "response format", "",  # a name need not be an identifier
    )
])  # fmt: skip
def test_an_unknown_field_is_refused_by_name(schema: type[Any], field: str) -> None:
    """Never ignored: a client that asks for it would believe it was heard."""
    exc = refusal(schema, {field: "x"})
    assert (exc.message, exc.param) == (f"'{field}' is not supported by this server.", field)


@pytest.mark.parametrize("schema", BOTH)
def test_unknown_fields_that_are_null_count_as_not_given(schema: type[Any]) -> None:
    """OpenAI's clients send null for what nobody set."""
    plain = parse(schema, orjson.dumps(BASE[schema]))
    assert parse(schema, orjson.dumps(BASE[schema] | {"tools": None, "grammar": None})) == plain


@pytest.mark.parametrize("schema", BOTH)
def test_known_fields_may_be_null(schema: type[Any]) -> None:
    """A null field counts as not given."""
    required_names = set(BASE[schema])
    nulls = {name: None for name in schema.model_fields if name not in required_names}
    assert parse(schema, orjson.dumps(BASE[schema] | nulls)) == parse(schema, orjson.dumps(BASE[schema]))


@pytest.mark.parametrize(("schema", "missing"), [
    (ChatRequest, "messages"), (ResponseRequest, "input"),
])  # fmt: skip
def test_a_missing_field_is_named(schema: type[Any], missing: str) -> None:
    """The client sees what to add."""
    with refused(missing, f"'{missing}' is missing"):
        parse(schema, orjson.dumps({k: v for k, v in BASE[schema].items() if k != missing}))


@pytest.mark.parametrize("raw", [b"", b"{", b'{"model": }', b"\xff", b'{"model": "m",}', b"{'model': 'm'}"])
def test_malformed_json_is_called_that(raw: bytes) -> None:
    """The error says where it broke."""
    with pytest.raises(RequestError, match="not valid JSON"):
        parse(ChatRequest, raw)


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"text"'])
def test_json_that_is_no_object_is_called_that(raw: bytes) -> None:
    """A body is an object."""
    with pytest.raises(RequestError, match="has to be a JSON object"):
        parse(ChatRequest, raw)


def test_fields_that_do_not_fit_together_are_named() -> None:
    with pytest.raises(RequestError, match=r"^default_priority=-9 is less than min_priority=-3\.$"):
        parse(NewTenant, b'{"default_priority": -9, "min_priority": -3}')


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    """Python's parsers would take them."""
    raw = b'{"model": "m", "prompt": "x", "temperature": %b}' % number.encode()
    with pytest.raises(RequestError):
        parse(CompletionRequest, raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.sampled_from(BOTH), st.dictionaries(st.sampled_from([*ChatRequest.model_fields, "prompt", "x"]), json_values))
def test_no_json_object_breaks_the_parser(schema: type[Any], fields: dict[str, Any]) -> None:
    """Each object is taken or refused with a RequestError: anything else would be a 500."""
    with suppress(RequestError):
        body = parse(schema, orjson.dumps(BASE[schema] | fields))
        body.check()
        body.sampling(16, logprobs=None)


@given(st.binary(max_size=40))
def test_no_bytes_break_the_parser(raw: bytes) -> None:
    """Bytes that are no text don't, either."""
    with pytest.raises(RequestError):
        parse(ChatRequest, raw)


@pytest.mark.parametrize("key", ["five", "1.5", "", "0x5", "5 5"])
def test_the_keys_of_logit_bias_are_token_ids(key: str) -> None:
    """JSON has no other keys than strings, so they are read."""
    with refused("logit_bias", "logit_bias"):
        chat(logit_bias={key: 1}).sampling(16, logprobs=None)


def test_stream_options_without_stream_are_refused() -> None:
    """OpenAI does the same."""
    for body in (chat(stream_options={"include_usage": True}), text(stream_options={}, stream=False)):
        with refused("stream_options", "stream_options"):
            body.check()
    chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": False}).check()
    chat(stream=True, stream_options={"include_obfuscation": False}).check()


def test_an_unknown_stream_option_is_refused_by_its_path() -> None:
    """Names within fields count too."""
    exc = refusal(ChatRequest, {"stream": True, "stream_options": {"include_everything": True}})
    assert exc.param == "stream_options.include_everything"


def test_top_logprobs_need_logprobs() -> None:
    """OpenAI does the same; values go from 0 to 20."""
    chat(logprobs=True, top_logprobs=0).check()
    chat(logprobs=True, top_logprobs=20).check()
    chat(logprobs=False, top_logprobs=0).check()
    assert refusal(ChatRequest, {"logprobs": True, "top_logprobs": 21}).param == "top_logprobs"
    assert refusal(ChatRequest, {"logprobs": True, "top_logprobs": -1}).param == "top_logprobs"
    for logprobs in (None, False):
        with refused("top_logprobs"):
            chat(logprobs=logprobs, top_logprobs=2).check()


def test_min_tokens_over_max_tokens_is_refused() -> None:
    """Such a request could not be met."""
    assert chat(min_tokens=5).sampling(5, logprobs=None).min_tokens == 5
    with refused("min_tokens"):
        chat(min_tokens=6).sampling(5, logprobs=None)


@pytest.mark.parametrize("make", [chat, text])
def test_what_is_not_given_has_openais_defaults(make: Any) -> None:
    """Temperature 1, everything else off."""
    assert make().sampling(16, logprobs=None) == Sampling(max_tokens=16)


@pytest.mark.parametrize(("fields", "sampling"), [
    ({"min_tokens": 3}, {"min_tokens": 3}),
    ({"temperature": 0}, {"temperature": 0.0}),
    ({"temperature": 1.5}, {"temperature": 1.5}),
    ({"top_p": 0.5}, {"top_p": 0.5}),
    ({"top_k": 7}, {"top_k": 7}),
    ({"top_k": -1}, {"top_k": 0}),
    ({"min_p": 0.1}, {"min_p": 0.1}),
    ({"presence_penalty": -1}, {"presence_penalty": -1.0}),
    ({"frequency_penalty": 1.25}, {"frequency_penalty": 1.25}),
    ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ({"seed": 0}, {"seed": 0}),
    ({"seed": 42}, {"seed": 42}),
    ({"stop": "a"}, {"stop": ("a",)}),
    ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
    ({"stop_token_ids": [1, 2]}, {"stop_token_ids": (1, 2)}),
    ({"include_stop_str_in_output": True}, {"include_stop": True}),
    ({"ignore_eos": True}, {"ignore_eos": True}),
    ({"n": 3}, {"n": 3}),
    ({"logit_bias": {"5": 1, "6": -100}}, {"logit_bias": {5: 1.0, 6: -100.0}}),
    ({"logit_bias": {}}, {"logit_bias": None}),
    ({"user": "me", "priority": 3, "timeout": 5}, {}),
])  # fmt: skip
@pytest.mark.parametrize("make", [chat, text])
def test_each_field_reaches_the_engine(make: Any, fields: dict[str, Any], sampling: dict[str, Any]) -> None:
    """One at a time, the others at their defaults."""
    assert make(**fields).sampling(16, logprobs=None) == Sampling(max_tokens=16, **sampling)


def test_logprobs_are_passed_on_as_told() -> None:
    """Their meaning differs between the two endpoints, so the endpoint says it."""
    assert chat().sampling(1, logprobs=3, prompt_logprobs=2) == Sampling(max_tokens=1, logprobs=3, prompt_logprobs=2)


def test_messages_are_made_plain_for_the_template() -> None:
    """Parts are joined, developer is the system by its newer name, and a name stays."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(messages=[
        {"role": "developer", "content": "rules"}, {"role": "user", "content": parts, "name": "me"},
    ])  # fmt: skip
    assert [m.for_template() for m in body.messages] == [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "a\nb", "name": "me"},
    ]


def test_the_tokenizer_endpoints_refuse_unknown_fields_too() -> None:
    """The same rules everywhere."""
    for schema in (TokenizeRequest, DetokenizeRequest):
        with pytest.raises(RequestError, match="'text' is not supported"):
            parse(schema, orjson.dumps({"model": "m", "text": "x", "tokens": [1]}))


@pytest.mark.parametrize("schema", [*ALL, TokenizeRequest, DetokenizeRequest])
def test_each_schema_is_shown_in_the_api_documentation(schema: type[Any]) -> None:
    """Handlers parse the body themselves, so the schema is given to FastAPI by hand."""
    json_schema = schema.openapi()["requestBody"]["content"]["application/json"]["schema"]
    assert set(json_schema["properties"]) == set(schema.model_fields)
    assert "$defs" not in json.dumps(json_schema), "nothing refers to what is not in the document"


def test_logprobs_of_prompts_are_not_streamed_and_bounded() -> None:
    """vLLM refuses them in a stream too."""
    flags = (chat(skip_special_tokens=skip).sampling(1, logprobs=None).special_tokens for skip in (None, True, False))
    assert [*flags] == [False, False, True]
    with pytest.raises(RequestError, match="'prompt_logprobs' is not available in a stream"):
        chat(prompt_logprobs=1, stream=True).check()
    chat(prompt_logprobs=1, n=2).check_logprobs(5120)
    with pytest.raises(RequestError, match="20480"):
        chat(prompt_logprobs=1, n=2).check_logprobs(5121)
    assert chat(prompt_logprobs=1).sampling(5, logprobs=None).prompt_logprobs == 1


def test_an_assistant_message_may_be_sent_back_as_the_openai_client_returns_it() -> None:
    """Its nulls are those of features that this server doesn't have."""
    nulls = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls"))
    message = {"role": "assistant", "content": "y", **nulls}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}, message]}
    assert parse(ChatRequest, orjson.dumps(body)).messages[1].content == "y"


def test_a_null_beside_an_unknown_field_does_not_hide_it() -> None:
    """The null is forgiven, the other is named."""
    assert refusal(CompletionRequest, {"grammar": None, "regex": "x"}).param == "regex"
    assert refusal(CompletionRequest, {"grammar": None, "tools": [{"type": "function"}]}).param == "tools"


@pytest.mark.parametrize(
    ("schema", "fields", "param"),
    [
        (CompletionRequest, {"model": "m", "prompt": 5}, "prompt"),
        (ChatRequest, {"model": "m", "messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ],
)
def test_a_field_of_several_types_is_named_without_the_type(
    schema: type[Any], fields: dict[str, Any], param: str
) -> None:
    """`prompt.str` is nothing that the client wrote."""
    assert refusal(schema, fields).param == param


@pytest.mark.parametrize("key", ["-5", "٣", "1_0", " 7 ", str(2**64), "9" * 4400])
def test_no_strange_spelling_of_a_number_is_a_token_id(key: str) -> None:
    """`int` reads more than token ids, and what msgpack can't carry must not get as far as the dispatcher."""
    with pytest.raises(RequestError):
        text(logit_bias={key: 1}).sampling(1, logprobs=None)


NEUTRALS = (
    [(schema, name, values) for schema in ALL for name, values in NEUTRAL.items() if name not in BASE[schema]]
    + [(TokenizeRequest, name, values) for name, values in NEUTRAL_OF_TOKENIZE.items()]
)  # fmt: skip
OTHERS: tuple[Any, ...] = (True, False, 7, 0.5, "another", [1], [], {"another": 1}, {}, ["text", "audio"], "")


@pytest.mark.parametrize(
    ("schema", "name", "values"), NEUTRALS, ids=[f"{schema.__name__}-{name}" for schema, name, _ in NEUTRALS]
)
def test_what_changes_nothing_is_taken_and_all_else_refused_by_name(
    schema: type[Any], name: str, values: tuple[Any, ...]
) -> None:
    """Every endpoint does so. Those that have the parameter take more values."""
    if (schema, name) == (CompletionRequest, "add_special_tokens"):
        values = (True,)  # no template has written them
    if (schema, name) == (CompletionRequest, "logprobs"):
        values = ()  # a number there
    for value in (None, *values):
        body = parse(schema, orjson.dumps(BASE[schema] | {name: value}))
        assert getattr(body, name) == value or name in ("text", "reasoning", "messages", "response_format")  # objects
    annotation = schema.model_fields[name].annotation
    if annotation is not Any:
        return
    for value in OTHERS:
        if value not in values:
            exc = refusal(schema, {name: value})
            assert (exc.message, exc.param) == (f"'{name}' is not supported by this server.", name), value


def test_a_neutral_value_is_of_its_own_type_whatever_other_tables_have() -> None:
    for values in ((1,), (True,), (1.0,), (True,), (1,)):
        field = neutral({"beside": values})(DetokenizeRequest).model_json_schema()["properties"]["beside"]
        assert field["type"] == "null", "generators of clients leave out endpoints with an enum of other types"
        assert field["description"].endswith(f": `{json.dumps(values[0])}`.")


@pytest.mark.parametrize("value", [{"type": "text", "json_schema": None}, {"json_schema": None, "type": "text"}])
def test_nulls_in_a_neutral_value_count_as_not_given(value: dict[str, Any]) -> None:
    """Some clients write every field of an object."""
    assert chat(response_format=value) == chat(response_format={"type": "text"})
    assert refusal(ChatRequest, {"response_format": {"type": "xml", "json_schema": None}}).param is not None


@pytest.mark.parametrize("name", NEUTRAL_OF_MESSAGES)
def test_what_an_earlier_answer_did_not_have_may_come_back(name: str) -> None:
    """A value that it had is refused by its place: no template would show it."""
    for value in (None, *NEUTRAL_OF_MESSAGES[name]):
        message = {"role": "assistant", "content": "y", name: value}
        assert chat(messages=[message]).messages[0].for_template() == {"role": "assistant", "content": "y"}
    for value in ("another", [{"id": "a"}], {"id": "a"}):
        exc = refusal(ChatRequest, {"messages": [{"role": "assistant", "content": "y", name: value}]})
        assert exc.message == f"'messages.0.{name}' is not supported by this server."


def test_an_answer_without_content_or_calls_was_empty() -> None:
    """A question without content is an error."""
    for fields in ({"content": None, "tool_calls": []}, {"content": None, "another": None}, {}):
        body = chat(messages=[{"role": "assistant", **fields}])
        assert body.messages[0].for_template() == {"role": "assistant", "content": ""}
    for role in ("user", "system", "developer"):
        assert refusal(ChatRequest, {"messages": [{"role": role, "content": None}]}).param == "messages.0.content"


@pytest.mark.parametrize(("schema", "fields", "param", "said"), [
    (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]},
     "messages.0.content.1.type", f"content parts of type '{part['type']}' are not supported by this server.")
    for part in (
        {"type": "input_video", "input_video": {"url": "http://x"}},
        {"type": "refusal", "refusal": "no"},
    )
] + [
    (ResponseRequest, {"input": [{"role": "user", "content": [{"type": kind, "detail": "auto"}]}]},
     "input.0.content.0.type", f"content parts of type '{kind}' are not supported by this server.")
    for kind in ("input_video", "input_file", "computer_screenshot")
] + [
    (ResponseRequest, {"input": [{"role": "user", "content": "x"}, {"type": kind, "call_id": "c", "output": "x"}]},
     "input.1.type", f"items of type '{kind}' are not supported by this server.")
    for kind in ("web_search_call", "computer_call", "local_shell_call_output", "mcp_call")
] + [
    (schema, {field: [{"role": role, "content": "x", "tool_call_id": "c"}]},
     f"{field}.0.role", f"messages of role '{role}' are not supported by this server.")
    for schema, field, roles in (
        (ChatRequest, "messages", ("x" * 64,)),
        (TokenizeRequest, "messages", ("x" * 64,)),
        (ResponseRequest, "input", ("tool", "function", "x" * 64)),
    )
    for role in roles
])  # fmt: skip
def test_parts_messages_and_items_of_another_kind_are_called_by_it(
    schema: type[Any], fields: dict[str, Any], param: str, said: str
) -> None:
    """The client sees what to leave out, and where it is."""
    exc = refusal(schema, fields)
    assert (exc.message, exc.param) == (f"'{param}': {said}", param)


def test_a_message_without_a_role_is_called_that() -> None:
    """The role tells messages apart."""
    assert refusal(ChatRequest, {"messages": [{"content": "x"}]}).message == "'messages.0.role' is missing."
    exc = refusal(ChatRequest, {"messages": [{"role": 5, "content": "x"}]})
    assert exc.message == "'messages.0.role' is not supported by this server."
