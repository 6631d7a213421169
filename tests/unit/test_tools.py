"""Tools: what may be described and chosen, which results have a call, and a refusal that names the place."""

from typing import Any

import orjson
import pytest

from app.errors import RequestError
from app.openai.schemas import ChatRequest, CompletionRequest, TokenizeRequest
from app.schemas.validation import parse
from tests.present import present
from tests.refusals import refused

MESSAGES = [{"role": "user", "content": "?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Kraków", None]}, "days": {"type": ["integer", "null"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Kraków"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "7°C"}


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, orjson.dumps({"model": "m", "messages": MESSAGES} | fields))


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"} | fields}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(*names: str, mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        chat(**fields).check()
    assert error.value.status == 400
    return error.value


def test_what_openais_package_parsed_comes_back_with_an_answer_and_is_not_kept() -> None:
    call = CALL | {"function": CALL["function"] | {"parsed_arguments": {"city": "Paris"}}}
    answers = [
        CALLED | {"parsed": None, "tool_calls": [call]},
        {"role": "assistant", "content": "{}", "parsed": {"a": None}},
    ]
    body = chat(messages=[MESSAGES[0], answers[0], RESULT, answers[1]])
    plain = chat(messages=[MESSAGES[0], CALLED, RESULT, {"role": "assistant", "content": "{}"}])
    assert body.understood() == plain.understood()


@pytest.mark.parametrize("fields", [
    {"tools": []},
    {"tools": [WEATHER, TIME]},
    {"tools": [function(name="a-Z_9" + "x" * 59)]},
    {"tools": [function(strict=False, description=None, parameters=None)]},
    {"tools": [function(name=f"f{i}") for i in range(4096)]},
    {"tools": [TIME], "tool_choice": "auto", "parallel_tool_calls": True},
    {"tools": [TIME], "tool_choice": allowed("get_time")},
    {"tools": [function(strict=True)], "tool_choice": "none", "parallel_tool_calls": False},
    {"tool_choice": "none", "parallel_tool_calls": False},
    {"tool_choice": "auto", "tools": []},
    {"messages": [*MESSAGES, CALLED, RESULT]},
    {"messages": [*MESSAGES, CALLED, RESULT, *MESSAGES, RESULT], "tools": [WEATHER]},
    {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [CALL | {"index": 0}]}]},
    {"messages": [CALLED, RESULT | {"content": [{"type": "text", "text": "7"}, {"type": "text", "text": "°C"}]}]},
    {"messages": [{"role": "function", "name": "f", "content": None}]},
])  # fmt: skip
def test_what_is_meant_by_openai_is_taken(fields: dict[str, Any]) -> None:
    """Its stored form is as good."""
    body = chat(**fields)
    body.check()
    assert parse(ChatRequest, body.understood()) == body


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"default": schema}
    return schema


@pytest.mark.parametrize(("fields", "param"), [
    ({"tools": {}}, "tools"),
    ({"tools": [function(name=f"f{i}") for i in range(4097)]}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [TIME, {"type": "custom", "custom": {"name": "f"}}]}, "tools.1.type"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
    ({"tools": [function(name="")]}, "tools.0.function.name"),
    ({"tools": [function(name="x" * 65)]}, "tools.0.function.name"),
    ({"tools": [function(name="get weather")]}, "tools.0.function.name"),
    ({"tools": [function(name="a.b")]}, "tools.0.function.name"),
    ({"tools": [function(name="f\n")]}, "tools.0.function.name"),
    ({"tools": [TIME, WEATHER, TIME]}, "tools.2.function.name"),
    ({"tools": [TIME, WEATHER, function(parameters=[])]}, "tools.2.function.parameters"),
    ({"tools": [function(parameters={"type": "string"})]}, "tools.0.function.parameters"),
    ({"tools": [function(parameters={"x": "y" * 2**16})]}, "tools.0.function.parameters"),
    ({"tools": [function(returns="text")]}, "tools.0.function.returns"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}, "tools": [TIME]}, "tool_choice"),
    ({"tool_choice": {"type": "function"}, "tools": [TIME]}, "tool_choice.function"),
    ({"tool_choice": {"type": "function", "function": {}}, "tools": [TIME]}, "tool_choice.function.name"),
    ({"tool_choice": named("f")}, "tool_choice"),
    ({"tool_choice": named("f"), "tools": [TIME]}, "tool_choice.function.name"),
    ({"tool_choice": allowed("get_time", "f"), "tools": [TIME]}, "tool_choice.allowed_tools.tools.1.function.name"),
    ({"tool_choice": allowed(), "tools": [TIME]}, "tool_choice.allowed_tools.tools"),
    ({"tool_choice": allowed("get_time", mode="none"), "tools": [TIME]}, "tool_choice.allowed_tools.mode"),
    ({"messages": [*MESSAGES, RESULT]}, "messages.1.tool_call_id"),
    ({"messages": [RESULT, CALLED]}, "messages.0.tool_call_id"),
    ({"messages": [CALLED, RESULT, RESULT | {"tool_call_id": "call_2"}]}, "messages.2.tool_call_id"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
    ({"messages": [CALLED, RESULT | {"content": None}]}, "messages.1.content"),
    ({"messages": [CALLED, RESULT | {"content": [{"type": "refusal"}]}]}, "messages.1.content.0.type"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages.0.name"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages.0.function_call"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}]},
     "messages.0.tool_calls.0.type"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}]},
     "messages.0.tool_calls.0.function"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
])  # fmt: skip
def test_what_is_wrong_is_named_by_its_place(fields: dict[str, Any], param: str) -> None:
    """Both `param` and the message name it."""
    exc = refusal(**fields)
    assert (exc.param, f"'{param}'" in exc.message) == (param, True), exc.message


@pytest.mark.parametrize(("arguments", "shown"), [
    ("", {}), ('{"a": 1}', {"a": 1}), ('"{\\"a\\": 1}"', {"a": 1}), ("[]", "[]"), ("{", "{"), ("null", "null"),
    ("nothing", "nothing"), ("[" * 10**5, "[" * 10**5), ('{"a": "\\ud800"}', '{"a": "\\ud800"}'),
])  # fmt: skip
def test_the_arguments_of_an_earlier_call_are_an_object_if_they_are_one(arguments: str, shown: Any) -> None:
    """A model may have written none, or was cut off: its conversation goes on all the same."""
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    body = chat(messages=[*MESSAGES, {"role": "assistant", "tool_calls": [call]}])
    body.check()
    assert body.messages[1].for_template()["tool_calls"][0]["function"]["arguments"] == shown


@pytest.mark.parametrize(("fields", "where", "forced", "one"), [
    ({"tool_choice": "required"}, "tool_choice", True, False),
    ({"tool_choice": named("get_time")}, "tool_choice", True, True),
    ({"tool_choice": allowed("get_time", mode="required")}, "tool_choice", True, False),
    ({"parallel_tool_calls": False}, "parallel_tool_calls", False, True),
    ({"tools": [TIME, function(strict=True)]}, "tools.1.function.strict", False, False),
    ({"tool_choice": "auto"}, "", False, False),
])  # fmt: skip
def test_what_only_a_grammar_can_promise_binds_calls(
    fields: dict[str, Any], where: str, forced: bool, one: bool
) -> None:
    """A model may be asked for it, and may not do it."""
    request = chat(**{"tools": [TIME]} | fields)
    request.check()
    calls = present(request.bound_calls())
    assert (calls.where, calls.forced, calls.one) == (where, forced, one)
    assert request.binds_calls == calls.bound == bool(where)


def test_a_named_tool_is_the_only_one_that_can_be_called() -> None:
    calls = present(chat(tools=[WEATHER, TIME], tool_choice=named("get_time")).bound_calls())
    assert [*calls.schemas] == ["get_time"]
    assert chat(tools=[WEATHER], tool_choice="none").bound_calls() is None


def test_a_client_that_allows_some_tools_gives_the_model_these_alone() -> None:
    tools: Any = [WEATHER, TIME, function(strict=True)]
    names = [tool.function.name for tool in chat(tools=tools, tool_choice=allowed("get_time")).offered]
    assert names == ["get_time"]
    chat(tools=tools, tool_choice=allowed("get_time")).check()  # the strict one isn't among them
    assert chat(tools=tools, tool_choice="none").offered == ()
    assert len(chat(tools=tools).offered) == 3


@pytest.mark.parametrize("schema", [
    {}, {"type": "object"}, {"$ref": "#/$defs/x", "$defs": {"x": True}}, {"properties": {"type": {"type": "string"}}},
    {"properties": {"a": {"anyOf": [{"type": "null"}, False]}}}, {"items": [{}], "prefixItems": [{}]},
    {"properties": {"a": {"exclusiveMinimum": True}, "b": {"exclusiveMinimum": 0.5, "minLength": 0}}},
    {"properties": {"a": {"default": None, "const": None, "enum": [None], "examples": [{"type": 5}]}}},
    {"x": {"$ref": "#/y"}, "y": {"properties": {"b": {"$ref": "#/x"}}}, "$ref": "#/x"}, {"$ref": "#"}, {"$ref": "#/no"},
    {"x-order": ["a"], "title": "", "not": {}, "if": {}, "then": {}, "patternProperties": {"^a": {}}}, deep(32),
])  # fmt: skip
def test_schemas_of_every_draft_are_taken_as_they_are(schema: dict[str, Any]) -> None:
    """Nulls in them included, also where another null in the body counts as not given."""
    for more in ({}, {"grammar": None}):
        body = chat(tools=[function(parameters=schema)], **more)
        assert body.offered[0].parameters == schema
        assert parse(ChatRequest, body.understood()).offered[0].parameters == schema


@pytest.mark.parametrize(("schema", "said"), [
    ({"type": "array"}, "'object'"),
    ({"type": ["object"]}, "'object'"),
    ({"properties": []}, "properties is not an object of schemas"),
    ({"properties": {"a": "string"}}, "properties.a is not a schema"),
    ({"properties": {"a": {"type": "text"}}}, "properties.a.type is not a type of JSON"),
    ({"properties": {"a": {"type": []}}}, "properties.a.type is not a type"),
    ({"properties": {"a": {"required": True}}}, "properties.a.required is not a list"),
    ({"properties": {"a": {"items": "string"}}}, "properties.a.items is not a schema"),
    ({"properties": {"a": {"items": [{}, 1]}}}, "properties.a.items.1 is not a schema"),
    ({"anyOf": {"type": "object"}}, "anyOf is not a list of schemas"),
    ({"oneOf": [{"not": 5}]}, "oneOf.0.not is not a schema"),
    ({"properties": {"a": {"enum": "a"}}}, "properties.a.enum is not a list"),
    ({"properties": {"a": {"minLength": -1}}}, "properties.a.minLength is not a count"),
    ({"properties": {"a": {"maxItems": True}}}, "properties.a.maxItems is not a count"),
    ({"properties": {"a": {"minimum": "0"}}}, "properties.a.minimum is not a number"),
    ({"description": 5}, "description is not a text"),
    ({"x": {"enum": 5}, "properties": {"a": {"$ref": "#/x"}}}, "#/x.enum is not a list"),
    ({"x": {"items": {"$ref": "#/y"}}, "y": {"required": 5}, "$ref": "#/x"}, "#/y.required is not a list"),
    ({"x": [], "anyOf": [{"$ref": "#/x"}]}, "#/x is not a schema"),
    (deep(33), "at most 32 levels"),
])  # fmt: skip
def test_what_is_no_json_schema_is_refused_and_says_why(schema: dict[str, Any], said: str) -> None:
    exc = refusal(tools=[function(parameters=schema)])
    assert exc.param == "tools.0.function.parameters"
    assert said in exc.message
    assert len(exc.message) < 400


def test_numbers_that_are_none_are_refused_in_schemas_too() -> None:
    """A second reader of the body would find null there."""
    for field in ("tools", "chat_template_kwargs"):
        value = (
            b'{"a":NaN}'
            if field != "tools"
            else b'[{"type":"function","function":{"name":"f","parameters":{"a":NaN}}}]'
        )
        raw = b'{"model":"m","messages":[{"role":"user","content":"?"}],"%b":%b}' % (field.encode(), value)
        with pytest.raises(RequestError) as error:
            parse(ChatRequest, raw)
        assert (error.value.param or "").startswith(field)


def test_text_completions_have_no_tools() -> None:
    with pytest.raises(RequestError, match="'tools' is not supported"):
        parse(CompletionRequest, orjson.dumps({"model": "m", "prompt": "x", "tools": [TIME]}))


def test_a_conversation_with_tools_can_be_tokenised() -> None:
    """The conversation is checked as it is for an answer."""
    parse(TokenizeRequest, orjson.dumps({"model": "m", "messages": [CALLED, RESULT], "tools": [TIME]})).check()
    with refused("messages.0.tool_call_id"):
        parse(TokenizeRequest, orjson.dumps({"model": "m", "messages": [RESULT]})).check()


@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {}], ids=["forced", "strict"])
def test_all_schemas_of_bound_calls_have_a_bound_together(fields: dict[str, Any]) -> None:
    large = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": large, "strict": True}} for i in (1, 2)]
    with refused("tools"):
        chat(tools=tools, **fields).bound_calls()
    assert chat(tools=tools[:1], **fields).bound_calls() is not None
