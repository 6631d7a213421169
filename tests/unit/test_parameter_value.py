"""A parameter's text becomes a JSON value of the type that the tool's schema names."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.parameter_value import as_json, types_of

COLOR = {"enum": ["red", "7"], "type": "string"}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, "007", "007"),
        ({"type": "number"}, "1e20", 1e20),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "maybe", "maybe"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "string"}, "null", "null"),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object"}, "[1]", "[1]"),
        ({"type": "array"}, "[1", "[1"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "five", "five"),
        ({"anyOf": [{"type": "string"}, {}]}, "5", 5),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": "1"}, "1", "1"),
        ({"const": 1}, "1", 1),
        ({"$ref": "#/$defs/Color"}, "7", "7"),
        ({"$ref": "#/$defs/None"}, "7", 7),
        ({"$ref": "#/properties/p"}, "7", 7),
        ({}, '{"a": 1}', {"a": 1}),
        ({}, "plain", "plain"),
        ({}, " NaN", " NaN"),
        (None, "true", True),
    ],
)
def test_the_schema_says_what_a_text_is(schema: Any, text: str, value: Any) -> None:
    types = types_of({"properties": {"p": schema}, "$defs": {"Color": COLOR}}, "p", None)
    assert json.loads(as_json(text, types)) == value


@pytest.mark.parametrize(
    ("written", "text", "value"),
    [("true", "7", "7"), ("false", "7", 7), ("string", "7", "7"), ("number", "7", 7), ("null", "null", None)],
)
def test_what_the_model_says_of_it_goes_before_the_schema(written: str, text: str, value: Any) -> None:
    assert json.loads(as_json(text, types_of({"properties": {"p": {"type": "array"}}}, "p", written))) == value


@pytest.mark.parametrize(
    ("schema", "written", "text", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer", "null", None),
        ({"type": ["string", "null"]}, "string", "null", None),
        ({"type": "string"}, "string", "null", "null"),
        ({}, "object", "5", 5),
        ({}, "object", '"x"', "x"),
        ({"type": "object"}, "object", "{'a': 1}", {"a": 1}),
    ],
)
def test_a_model_names_one_type_of_several(schema: Any, written: str, text: str, value: Any) -> None:
    """Kimi K3, held to a schema: null, and a value of any type, came as texts."""
    assert json.loads(as_json(text, types_of({"properties": {"p": schema}}, "p", written))) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["string", "object", "#/p", "", "null"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "anyOf", "enum", "$ref", "properties", "p", "allOf"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(JSON, st.text(max_size=12) | st.sampled_from(["1" * 5000, "[" * 3000, "1e999", '{"a":']))
def test_whatever_schema_and_text_are_the_value_is_json(schema: Any, text: str) -> None:
    json.loads(as_json(text, types_of(schema, "p", None)), parse_int=str)
