"""MiniMax M3's arguments: each part between tags of its own name, read by the schema, and held to it."""

import json
from typing import Any

import pytest

from app.dialects.families import DIALECTS
from app.dialects.output_parser import OutputParser
from app.dialects.parts import Arguments
from app.errors import RequestError
from app.openai.answer_grammar import Situation
from tests.unit.test_answer_grammar import allows, grammar

MARK = "]<]minimax[>["
WHERE = Situation(DIALECTS["minimax_m3"])
PLACE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "lat": {"type": "number"}},
    "required": ["name"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["near", "far"]},
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}, "minItems": 1},
        "exact": {"type": "boolean"},
    },
    "required": ["kind", "places"],
    "$defs": {"place": PLACE},
}


def element(name: str, *inner: str) -> str:
    return f"{MARK}<{name}>{''.join(inner)}{MARK}</{name}>"


def call(*arguments: str) -> str:
    invoke = f'{MARK}<invoke name="go">{"".join(arguments)}{MARK}</invoke>\n'
    return f"{MARK}<tool_call>\n{invoke}{MARK}</tool_call>"


KIND = element("kind", "near")
NAMED = element("item", element("name", "São Paulo: 1 < 2"))
PLACES = element("places", NAMED, element("item", element("name", "12"), element("lat", "-1.5")))


def read(text: str, schema: Any = SCHEMA) -> Any:
    parser = OutputParser(DIALECTS["minimax_m3"], {"go": schema})
    parts = [part for char in text for part in parser.feed(char)] + parser.close()
    assert not parser.unfinished
    return json.loads("".join(part.text for part in parts if isinstance(part, Arguments)))


def asked(schema: dict[str, Any] = SCHEMA, **fields: Any) -> Any:
    tool = {"type": "function", "function": {"name": "go", "parameters": schema, **fields}}
    return grammar(WHERE, tools=[tool], tool_choice="required")


def test_parts_have_the_types_of_their_schemas() -> None:
    places = [{"name": "São Paulo: 1 < 2"}, {"name": "12", "lat": -1.5}]
    assert read(call(KIND, PLACES)) == {"kind": "near", "places": places}


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (element("a", element("item", "1"), element("item", "b")), {"a": [1, "b"]}),
        (element("a", element("b", element("item", "true"))), {"a": {"b": [True]}}),
        (element("a", element("item", "1"), element("c", "2")), {"a": {"item": 1, "c": 2}}),
        (element("a", ' {"b": [1]} '), {"a": {"b": [1]}}),
        (element("a", element("b", "1"), element("b", "x"), element("c", "2")), {"a": {"b": [1, "x"], "c": 2}}),
    ],
)
def test_parts_without_a_schema_are_what_they_look_like(arguments: str, value: Any) -> None:
    assert read(call(arguments), {}) == value


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (call(KIND, PLACES), True),
        (call(KIND, PLACES, element("exact", "false")), True),
        (call(element("kind", "off"), PLACES), False),
        (call(PLACES), False),
        (call(KIND, element("places")), False),
        (call(KIND, element("places", element("item", element("lat", "1")))), False),
        (call(KIND, element("places", element("item", element("name", "a"), element("lat", "b")))), False),
        (call(KIND, PLACES, element("exact", "no")), False),
    ],
)
def test_a_call_is_held_to_the_schema(text: str, fits: bool) -> None:
    assert allows(asked(), text) == fits


def test_texts_and_lists_have_the_lengths_that_a_schema_says() -> None:
    """The marker's first bracket would end a regular expression's class of characters."""
    text, none = {"type": "string", "minLength": 2, "maxLength": 4}, {"type": "array", "items": {}, "maxItems": 0}
    rules = asked({"type": "object", "properties": {"s": text, "l": none}, "required": ["s"]})
    fit = {value: allows(rules, call(element("s", value))) for value in ("a", "ab", "a]b[", "abcde", "]]")}
    assert fit == {"a": False, "ab": True, "a]b[": False, "abcde": False, "]]": False}
    assert allows(rules, call(element("s", "ab]["), element("l")))
    assert not allows(rules, call(element("s", "ab"), element("l", element("item", "1"))))


def test_a_strict_tool_is_refused_for_what_is_not_seen_to() -> None:
    of = {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "object"}]}},
        "required": ["a"],
    }
    assert asked(of)
    with pytest.raises(RequestError, match="anyOf can't be enforced"):
        asked(of | {"additionalProperties": False}, strict=True)


def test_an_argument_whose_name_is_no_tag_is_refused() -> None:
    with pytest.raises(RequestError, match="one of these is no tag"):
        asked({"type": "object", "properties": {"a b": {"type": "string"}}, "required": ["a b"]})
