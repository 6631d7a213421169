"""Arguments that are not written as JSON are held to the tool's schema all the same, in each family's way."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.dialects.families import DIALECTS
from app.errors import RequestError
from app.messages.job import Grammar
from app.openai.answer_grammar import Situation
from tests.dialect_parts import arguments
from tests.refusals import refused
from tests.unit.test_answer_grammar import TREE, allows, grammar, tool
from tests.unit.test_own_conformance import FAMILIES, plain

TRIP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 4},
        "day": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
        "n": {"type": "integer", "minimum": 1, "maximum": 9},
        "x": {"type": "number"},
        "b": {"type": ["boolean", "null"]},
        "note": {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"enum": ["a", None, 2]}, "minItems": 1, "maxItems": 2},
        "who": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}},
        "any": {},
        "list": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "one": {"type": "array", "items": {"type": "integer"}, "maxItems": 1},
        "only": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 1},
    },
    "required": ["name", "tags"],
}
VALID: list[dict[str, Any]] = [
    {"name": "abc", "tags": ["a"]},
    {"name": "ab", "day": "2026-01-02", "code": "AB", "n": 3, "x": -1.5e3, "b": None, "note": "so", "tags": [2, None],
     "who": {"a": 'a "b" <c>'}, "any": {"a": [1, None, True, "x"]}, "list": [[1, -2], []]},
    {"name": "äöüß", "b": False, "note": None, "tags": ["a", "a"], "who": {}, "any": [True], "list": []},
    {"name": "ab<c", "tags": [None], "who": {"a": "", "b": 1}, "one": [], "only": [1]},
    {"name": "abc", "tags": ["a"], "one": [12]},
]  # fmt: skip
INVALID: list[dict[str, Any]] = [
    {"name": "a", "tags": ["a"]},
    {"name": "abcde", "tags": ["a"]},
    {"name": "abc"},
    {"name": "abc", "tags": []},
    {"name": "abc", "tags": ["a", "a", "a"]},
    {"name": "abc", "tags": ["b"]},
    {"name": "abc", "day": "2026-13-02", "tags": ["a"]},
    {"name": "abc", "code": "ABC", "tags": ["a"]},
    {"name": "abc", "n": 10, "tags": ["a"]},
    {"name": "abc", "x": "one", "tags": ["a"]},
    {"name": "abc", "note": "s", "tags": ["a"]},
    {"name": "abc", "tags": ["a"], "who": {"b": "1"}},
    {"name": "abc", "tags": ["a"], "list": [[1.5]]},
    {"name": "abc", "tags": ["a"], "one": [1, 2]},
    {"name": "abc", "tags": ["a"], "only": []},
    {"name": "abc", "tags": ["a"], "other": 1},
]


def python(arguments: dict[str, Any]) -> str:
    def value(of: Any) -> str:
        if isinstance(of, dict):
            return "{" + ", ".join(f"{json.dumps(key)}: {value(inner)}" for key, inner in of.items()) + "}"
        if isinstance(of, list):
            return f"[{', '.join(map(value, of))}]"
        return json.dumps(of, ensure_ascii=False) if isinstance(of, str) else repr(of)

    return f"[look({', '.join(f'{key}={value(of)}' for key, of in arguments.items())})]"


def as_family(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda arguments: FAMILIES[name].calls([("look", arguments)])


def dsml(arguments: dict[str, Any]) -> str:
    parameters = "".join(
        f'<｜DSML｜parameter name="{key}" string="{json.dumps(isinstance(of, str) and key != "note")}">'
        f"{json.dumps(of, ensure_ascii=False) if key == 'note' else plain(of)}</｜DSML｜parameter>\n"
        for key, of in arguments.items()
        if key != "any"
    )
    return f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n{parameters}</｜DSML｜invoke>\n</｜DSML｜tool_calls>'


def kimi(arguments: dict[str, Any]) -> str:
    def kind(of: dict[str, Any]) -> str:
        types = of.get("type", "string" if "anyOf" in of else "object")
        return types[0] if isinstance(types, list) else types

    parameters = "".join(
        f'<|open|>argument key="{key}" type="{kind(TRIP["properties"].get(key, {}))}"<|sep|>'
        f"{plain(of)}<|close|>argument<|sep|>"
        for key, of in arguments.items()
    )
    call = f'<|open|>call tool="look"<|sep|>{parameters}<|close|>call<|sep|>'
    return f"<|open|>tools<|sep|>{call}<|close|>tools<|sep|>"


WRITERS = {"llama4": python, "glm": as_family("glm45"), "deepseek_v4": dsml, "kimi_k3": kimi}
WRITERS |= {name: as_family(name) for name in ("gemma4", "qwen3_coder", "minimax_m2")}


def taken(name: str, **fields: Any) -> Grammar:
    tools = [{"type": "function", "function": {"name": "look", "parameters": TRIP, "strict": True}}, tool("go")]
    return grammar(Situation(DIALECTS[name]), **({"tools": tools, "tool_choice": "required"} | fields))


@pytest.mark.parametrize("name", WRITERS)
def test_arguments_are_held_to_the_schema(name: str) -> None:
    rules, write = taken(name), WRITERS[name]
    assert [one for one in VALID if not allows(rules, write(one))] == []
    assert [one for one in INVALID if allows(rules, write(one))] == []
    for one in VALID:
        expected_arguments = {key: of for key, of in one.items() if name != "deepseek_v4" or key != "any"}
        assert arguments(DIALECTS[name], "look", TRIP, [write(one)]) == expected_arguments


@pytest.mark.parametrize("name", WRITERS)
def test_a_strict_tool_is_held_to_its_schema_wherever_in_a_text_it_is_called(name: str) -> None:
    rules, write = taken(name, tool_choice="auto"), WRITERS[name]
    assert allows(rules, "No [1] and no <b>.")
    assert allows(rules, f"So: {write(VALID[0])} Done.")
    assert not allows(rules, f"So: {write(INVALID[0])} Done.")


@pytest.mark.parametrize("name", WRITERS)
def test_a_tool_that_is_not_strict_has_any_arguments_though_calls_are_counted(name: str) -> None:
    loose = {"type": "function", "function": {"name": "look", "parameters": TRIP}}
    rules, write = taken(name, tools=[loose], tool_choice="auto", parallel_tool_calls=False), WRITERS[name]
    assert [arguments for arguments in [*VALID, *INVALID, {}] if not allows(rules, write(arguments))] == []
    assert not allows(rules, write(VALID[0]) + "\n" + write(VALID[0]))
    if name == "llama4":
        assert not allows(rules, "[look(), look()]")


@pytest.mark.parametrize("name", ["llama4", "gemma4"])
@pytest.mark.parametrize("needed", [[], ["c"], ["a", "e"]])
def test_properties_may_be_missing_where_they_are_not_required(name: str, needed: list[str]) -> None:
    keys = "abcde"
    schema = {"type": "object", "properties": {key: {"type": "integer"} for key in keys}, "required": needed}
    tools = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
    rules = grammar(Situation(DIALECTS[name]), tools=tools, tool_choice="required")
    for some in range(2 ** len(keys)):
        arguments = {key: 1 for i, key in enumerate(keys) if some >> i & 1}
        assert allows(rules, WRITERS[name](arguments)) == (arguments.keys() >= set(needed))


@pytest.mark.parametrize(("name", "parameters", "said"), [
    ("gemma4", TREE, "parts.items.parts.items.$ref to what it is in can't be enforced"),
    ("llama4", {"properties": {"a": {"type": "object", "minProperties": 1}}}, "a.minProperties can't be enforced"),
    ("llama4", {"properties": {"ﬁle": {"type": "string"}}, "required": ["ﬁle"]}, "'ﬁle' is no name"),
    ("llama4", {"properties": {"from": {"type": "string"}}, "required": ["from"]}, "'from' is no name"),
    ("gemma4", {"properties": {"a": {"enum": ['<|"|>']}}}, "can't be written"),
    ("llama4", {"properties": {"a": {"type": "array", "minItems": 2, "maxItems": 1}}}, "maxItems is less than"),
    ("glm", {"properties": {"a": {"type": ["string", "integer"], "maxLength": 3}}}, "properties.a.maxLength can't be"),
    ("glm", {"properties": {"a": {"type": "string"}}, "minProperties": 1}, "minProperties"),
])  # fmt: skip
def test_what_a_family_can_not_enforce_is_refused_of_a_strict_tool(
    name: str, parameters: dict[str, Any], said: str
) -> None:
    strict = {"name": "look", "strict": True, "parameters": {"type": "object"} | parameters}
    with pytest.raises(RequestError) as error:
        grammar(Situation(DIALECTS[name]), tools=[tool("go"), {"type": "function", "function": strict}])
    assert error.value.param == "tools.1.function.parameters"
    assert said in error.value.message


def test_a_property_that_python_has_no_name_for_is_left_out_where_it_may_be() -> None:
    schema = {"type": "object", "properties": {"-A": {"type": "integer"}, "a": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": schema, "strict": True}}]
    rules = grammar(Situation(DIALECTS["llama4"]), tools=tools, tool_choice="required")
    assert allows(rules, "[look(a=1)]")
    assert not allows(rules, "[look(-A=1)]")


@pytest.mark.parametrize("name", ["llama4", "gemma4"])
def test_a_schema_within_itself_is_free_there_where_the_tool_is_not_strict(name: str) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": TREE}}]
    rules = grammar(Situation(DIALECTS[name]), tools=tools, tool_choice="required")
    node: dict[str, Any] = {"name": None, "unit": "F", "parts": [], "same": []}
    assert allows(rules, WRITERS[name](node | {"parts": [node | {"parts": [node]}]}))
    assert not allows(rules, WRITERS[name](node | {"unit": "K"}))


@pytest.mark.parametrize("name", ["llama4", "gemma4"])
def test_a_schema_whose_parts_refer_to_each_other_many_times_is_refused(name: str) -> None:
    within = {f"d{i}": {"type": "array", "items": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 8}} for i in range(8)}
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": within | {"d8": {}}}
    with refused("tools.1.function.parameters", "at most 4096 values"):
        grammar(
            Situation(DIALECTS[name]),
            tool_choice="required",
            tools=[tool("go"), {"type": "function", "function": {"name": "look", "parameters": parameters}}],
        )


@pytest.mark.parametrize("name", ["qwen3", "qwen3_coder", "gemma4", "llama4"])
def test_a_schema_of_a_forced_tool_that_has_no_grammar_is_named(name: str) -> None:
    odd = tool("go", properties={"a": {"type": "string", "pattern": "(?=a)b"}})
    with refused("tools.1.function.parameters"):
        grammar(Situation(DIALECTS[name]), tools=[tool(), odd], tool_choice="required")
