"""Clients' wishes for an answer's content as a grammar; and those that can't be one."""

import json
from typing import Any

import orjson
import pytest

from app.errors import RequestError
from app.grammars.checker import GrammarCheck
from app.grammars.compile import check
from app.messages.job import Grammar
from app.openai.schemas import ChatRequest, CompletionRequest
from app.openai.structured import content_grammar
from app.schemas.validation import parse
from tests.grammar_checks import check_all
from tests.present import present

PERSON = {"type": "object", "properties": {"name": {"type": "string", "default": None}}, "required": ["name"]}
CALL = {"type": "tag", "begin": "<t>{", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "}</t>"}
THOUGHT = {"type": "tag", "begin": "<think>", "content": {"type": "any_text", "excludes": ["a/b"]}, "end": "</think>"}
BODIES: dict[Any, dict[str, Any]] = {
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "?"}]},
    CompletionRequest: {"model": "m", "prompt": "?"},
}


def asked(schema: Any = ChatRequest, **fields: Any) -> Grammar | None:
    body = parse(schema, orjson.dumps(BODIES[schema] | fields))
    body = parse(schema, body.understood())  # as a kept answer has it
    answer_format = body.asked_format()
    if answer_format is None:
        return None
    rules = content_grammar(answer_format)
    check_all([GrammarCheck(rules, answer_format.where)])
    return rules


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        asked(**fields)
    return error.value


@pytest.mark.parametrize("schema", BODIES)
@pytest.mark.parametrize(("fields", "kind", "text"), [
    ({"response_format": {"type": "json_object"}}, "json", '{"type": "object"}'),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}},
     "json", json.dumps(PERSON)),
    ({"guided_json": PERSON}, "json", json.dumps(PERSON)),
    ({"guided_json": json.dumps(PERSON)}, "json", json.dumps(PERSON)),
    ({"structured_outputs": {"json": PERSON}}, "json", json.dumps(PERSON)),
    ({"structured_outputs": {"json_object": True}}, "json", '{"type": "object"}'),
    ({"guided_regex": r"\d{4}/x"}, "regex", r"\d{4}/x"),
    ({"structured_outputs": {"regex": "a|b"}}, "regex", "a|b"),
    ({"guided_choice": ["yes", 'n"o\n']}, "choice", json.dumps(["yes", 'n"o\n'])),
    ({"structured_outputs": {"choice": ["a"]}}, "choice", '["a"]'),
    ({"guided_grammar": 'root ::= "a" | b\nb ::= [0-9]+'}, "grammar", 'root ::= "a" | b\nb ::= [0-9]+'),
    ({"structured_outputs": {"grammar": 'start: "a" B\nB: /[0-9]/'}}, "grammar", 'start: "a" B\nB: /[0-9]/'),
])  # fmt: skip
def test_each_way_to_ask_is_a_grammar(schema: Any, fields: dict[str, Any], kind: str, text: str) -> None:
    assert asked(schema, **fields) == Grammar(kind, text)  # type: ignore[arg-type]


def test_who_asks_for_text_or_nothing_gets_no_grammar() -> None:
    for fields in ({}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}, {"guided_json": None}):
        assert asked(**fields) is None


@pytest.mark.parametrize("form", [
    {"type": "triggered_tags", "triggers": ["<t>"], "tags": [CALL], "stop_after_first": True},
    {"type": "triggered_tags", "triggers": ["<t>"], "tags": [CALL], "at_least_one": True},
    {"type": "tags_with_separator", "tags": [CALL], "separator": "\n", "at_least_one": True},
    {"type": "sequence", "elements": [{"type": "optional", "content": THOUGHT}, {"type": "regex", "pattern": "a/b"}]},
    {"type": "or", "elements": [{"type": "grammar", "grammar": 'root ::= "a"'}, {"type": "const_string", "value": ""}]},
    {"type": "repeat", "min": 1, "max": -1, "content": {"type": "star", "content": {"type": "regex", "pattern": "a"}}},
])  # fmt: skip
def test_structural_tags_are_understood(form: dict[str, Any]) -> None:
    tag = {"type": "structural_tag", "format": form}
    for fields in ({"response_format": tag}, {"structured_outputs": {"structural_tag": json.dumps(tag)}}):
        rules = present(asked(**fields))
        assert (rules.kind, json.loads(rules.text)) == ("tag", tag)


def test_a_structural_tag_may_come_in_its_older_shape() -> None:
    structures = [{"begin": "<t>", "schema": PERSON, "end": "</t>"}]
    assert asked(response_format={"type": "structural_tag", "structures": structures, "triggers": ["<t"]})


@pytest.mark.parametrize(("fields", "param", "said"), [
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "'guided_regex' is given already"),
    ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex",
     "'response_format' is given already"),
    ({"guided_json": '{"type"'}, "guided_json", "it is not JSON"),
    ({"guided_json": "[]"}, "guided_json", "it is not a JSON object"),
    ({"guided_json": {"type": "thing"}}, "guided_json", "type is not a type of JSON"),
    ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", "uniqueItems can't be enforced"),
    ({"guided_json": {"properties": {"a": {"type": "integer", "multipleOf": 3}}}}, "guided_json",
     "properties.a.multipleOf can't be enforced"),
    ({"guided_json": {"type": "string", "pattern": "a", "maxLength": 3}}, "guided_json",
     "pattern can't be enforced beside a length"),
    ({"guided_json": {"allOf": [{"type": "string"}, {"enum": ["a"]}]}}, "guided_json", "allOf can't be enforced with"),
    ({"guided_json": {"$ref": "#/nowhere"}}, "guided_json", "nowhere"),
    ({"guided_regex": "a("}, "guided_regex", "unclosed group"),
    ({"guided_grammar": 'start: "a" x'}, "guided_grammar", "unknown name"),
    ({"guided_grammar": "no grammar"}, "guided_grammar", "Expected ::="),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "p"}}},
     "response_format.json_schema.schema", "is missing"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "'yaml' are not supported"),
    ({"response_format": {"type": "structural_tag", "format": {"type": "token", "token": 3}}}, "response_format",
     "formats of type 'token' are not supported"),
    ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern",
     "not supported"),
])  # fmt: skip
def test_what_is_no_grammar_or_several_is_refused_with_its_place(fields: dict[str, Any], param: str, said: str) -> None:
    exc = refusal(**fields)
    assert exc.param == param
    assert said in exc.message


def test_schemas_have_bounds() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"properties": {"a": deep}}
    assert "levels" in refusal(guided_json=deep).message
    assert "bytes" in refusal(guided_json={"enum": ["x" * 70_000]}).message
    assert "bytes" in refusal(guided_choice=["x" * 60_000, "y" * 60_000]).message


MANY = {"type": "array", "items": {"type": "string"}, "maxItems": 2**16}


@pytest.mark.parametrize("fields", [
    {"guided_json": MANY},
    {"guided_json": {"anyOf": [{"type": "array", "maxItems": 2**14, "minItems": n} for n in range(3)]}},
    {"structured_outputs": {"structural_tag": {"format": {"type": "json_schema", "json_schema": MANY}}}},
    {"response_format": {"type": "structural_tag", "triggers": ["<"],
                         "structures": [{"begin": "<", "schema": MANY, "end": ">"}]}},
], ids=str)  # fmt: skip
def test_lists_may_not_be_so_long_that_their_grammar_takes_gigabytes(fields: dict[str, Any]) -> None:
    assert "'maxItems' together are over 32768" in refusal(**fields).message


@pytest.mark.parametrize("fields", [
    {"guided_grammar": f"start: %json {json.dumps(MANY)}"},
    {"response_format": {"type": "structural_tag",
                         "format": {"type": "grammar", "grammar": f"start: %json {json.dumps(MANY)}"}}},
], ids=str)  # fmt: skip
def test_a_grammar_has_no_schemas_within(fields: dict[str, Any]) -> None:
    assert "'%json'" in refusal(**fields).message


def test_a_tag_can_not_be_nested_without_end() -> None:
    form: dict[str, Any] = {"type": "any_text"}
    for _ in range(100):
        form = {"type": "optional", "content": form}
    with pytest.raises(ValueError, match="more than 96"):
        check(Grammar("tag", json.dumps({"format": form})))
