"""Grammars of whole answers: what a model writes under them is read back as calls and content that fit."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from app.dialects.dialect import Dialect
from app.dialects.families import DIALECTS
from app.engines.mock.grammar_state import grammar_states
from app.engines.mock.sampler import Sampler
from app.engines.mock.vocabulary import Vocabulary
from app.errors import RequestError
from app.grammars.compile import compiled
from app.messages.job import Grammar, Sampling
from app.openai.answer_grammar import Situation, answer_grammar
from app.openai.schemas import ChatRequest
from app.openai.structured import Format
from app.tokenizing.tokenizer import load_tokenizer
from tests.dialect_parts import arguments, calls, parts_of, texts
from tests.grammar_checks import check_all
from tests.models import MODEL_DIR
from tests.present import present
from tests.refusals import refused
from tests.unit.test_own_conformance import FAMILIES
from tests.unit.test_tools import chat

TOKENIZER = load_tokenizer(MODEL_DIR)
KNOWN = LLTokenizer(TOKENIZER.raw.to_str(), eos_token=TOKENIZER.eos_id)
VOCABULARY = Vocabulary(TOKENIZER)
PARAMETERS = {
    "type": "object",
    "properties": {"days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}, "exact": {"type": "boolean"}},
    "required": ["days", "unit"],
    "additionalProperties": False,
}
UNWRITABLE = {"think", "functionary_v32"}
ENDLESS = {"plamo3"}  # a model that knows no better writes calls for ever
WRITABLE = sorted(DIALECTS.keys() - UNWRITABLE)
QWEN = Situation(DIALECTS["qwen3"])


def tool(name: str = "look", *, strict: bool | None = None, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS | parameters, "strict": strict}}


BOTH = [tool(), tool("go")]


def asked(**fields: Any) -> ChatRequest:
    request = chat(**{"tools": [tool()]} | fields)
    request.check()
    return request


def grammar(where: Situation, **fields: Any) -> Grammar:
    request = asked(**fields)
    checked_grammar = present(answer_grammar(request.asked_format(), request.bound_calls(), where))
    check_all(checked_grammar.checks)
    return checked_grammar.grammar


def allows(made: Grammar, text: str) -> bool:
    """Whether the grammar accepts the text as a whole answer."""
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    matcher = LLMatcher(KNOWN, compiled(made))
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def written(made: Grammar, begin: str) -> str:
    """Text that a model writes within the grammar, with nothing else to guide it."""
    tokens = TOKENIZER.encode(begin, add_special_tokens=False)
    (state,) = grammar_states(TOKENIZER, made, [tokens])
    sampler = Sampler(VOCABULARY, [1, 2, 3], Sampling(max_tokens=400, temperature=0.0), 0)
    while not state.over:
        tokens.append(sampler.choose(grammar=state, ends=len(tokens) > 60))
        sampler.append(tokens[-1])
        assert state.accept(tokens[-1:])
        assert len(tokens) < 400
    return TOKENIZER.decode(tokens[:-1])


def read(dialect: Dialect, text: str) -> tuple[list[tuple[str, Any]], str, str]:
    """Calls, content and reasoning."""
    parts = parts_of(dialect, {"look": PARAMETERS, "go": PARAMETERS}, [text])
    reasoning, content = texts(parts)
    return [(name, json.loads(arguments)) for name, arguments in calls(parts)], content, reasoning


@pytest.mark.parametrize("name", WRITABLE)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}], ids=["any", "one"])
def test_what_a_model_is_forced_to_write_is_read_as_calls(name: str, choice: Any) -> None:
    """Each family whose notation a grammar can express writes calls and nothing else."""
    dialect, several = DIALECTS[name], name not in ENDLESS
    rules = grammar(Situation(dialect), tools=BOTH, tool_choice=choice, parallel_tool_calls=several)
    answer_calls, content, _ = read(dialect, written(rules, "<|channel|>commentary" if dialect.channels else ""))
    assert (bool(answer_calls), content.strip()) == (True, "")
    assert choice == "required" or [function for function, _ in answer_calls] == ["look"]
    for _, values in answer_calls:
        assert {"days", "unit"} <= values.keys() <= {"days", "unit", "exact"}
        assert (type(values["days"]), values["unit"] in ("C", "F")) == (int, True)


@pytest.mark.parametrize("name", sorted(UNWRITABLE))
def test_a_family_whose_calls_no_grammar_says_refuses_by_name(name: str) -> None:
    for fields, param in (
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [tool(), tool("go", strict=True)]}, "tools.1.function.strict"),
        ({"guided_regex": "a"}, "guided_regex"),
    ):
        with refused(param, "can't be put into a grammar"):
            grammar(Situation(DIALECTS[name]), **fields)


def hermes(name: str = "look", arguments: str = '{"days": 1, "unit": "C"}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CALL, GO, BAD = hermes(), hermes("go"), hermes(arguments='{"days": "one", "unit": "C"}')
JSON: dict[str, Any] = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(("fields", "fits", "doesnt"), [
    ({"tool_choice": "required"}, [CALL, f"{CALL}\n{GO}"], ["", "No.", f"So: {CALL}", BAD, f"{CALL} Done."]),
    ({"tool_choice": "required", "parallel_tool_calls": False}, [CALL, GO], [f"{CALL}\n{GO}", "No."]),
    ({"tool_choice": {"type": "function", "function": {"name": "go"}}}, [GO], [CALL, f"{GO}\n{GO}"]),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "go"}}]}}}, [GO], [CALL, "No."]),
    ({"parallel_tool_calls": False}, ["No.", CALL, f"So: {CALL}", BAD], [f"{CALL}\n{GO}", f"{CALL} and on"]),
    ({"tools": [tool(strict=True), tool("go")]}, ["No.", f"So: {CALL}\n{GO} Done."], [BAD, "a <tool_call> b"]),
    (JSON, ['{"a": 1}', CALL, f"{CALL}\n{GO}"], ["No.", f'{{"a": 1}}{CALL}', ""]),
    (JSON | {"tool_choice": "required"}, [CALL], ['{"a": 1}']),
    ({"guided_choice": ["yes", "no"]}, ["yes", CALL], ["maybe"]),
], ids=str)  # fmt: skip
def test_what_is_asked_of_calls_holds(fields: dict[str, Any], fits: list[str], doesnt: list[str]) -> None:
    rules = grammar(QWEN, **({"tools": BOTH} | fields))
    assert [text for text in fits if not allows(rules, text)] == []
    assert [text for text in doesnt if allows(rules, text)] == []


@pytest.mark.parametrize(("begun", "fits", "doesnt"), [
    (True, ["Hm.</think>\n\n{}", "</think>{}"], ["{}", "Hm. {}"]),
    (False, ["<think>Hm.</think>\n\n{}", "{}"], ["Hm.</think>{}", "<think>{}"]),
])  # fmt: skip
@pytest.mark.parametrize("body", ["{}", CALL])
def test_reasoning_is_free_and_what_follows_it_is_not(
    begun: bool, fits: list[str], doesnt: list[str], body: str
) -> None:
    """The grammar's first part ends at the marker; a call or a brace in reasoning is neither."""
    where = Situation(DIALECTS["qwen3"], begun=begun, reasons=True)
    rules = grammar(where, **(JSON | {"tools": None} if body == "{}" else {"tool_choice": "required"}))
    assert [text for text in fits if not allows(rules, text.replace("{}", body))] == []
    assert [text for text in doesnt if allows(rules, text.replace("{}", body))] == []


def test_a_format_reaches_channels() -> None:
    rules = grammar(Situation(DIALECTS["gpt_oss"]), tools=None, **JSON)
    reasoning = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    text = f'{reasoning}<|channel|>final<|message|>{{"a": 1}}'
    assert allows(rules, text)
    assert not allows(rules, f"{reasoning}<|channel|>final<|message|>No.")
    assert read(DIALECTS["gpt_oss"], text) == ([], '{"a": 1}', "Hm.")


@pytest.mark.parametrize("fields", [{"guided_choice": ["yes", "no"]}, {"guided_regex": "(yes|no)"}])
def test_without_a_thought_an_answer_of_a_model_that_reasons_is_the_format_and_no_space_before_it(
    fields: dict[str, Any],
) -> None:
    """The dialect takes space away behind a thought, and nowhere else."""
    rules = grammar(Situation(DIALECTS["qwen3"], reasons=True), tools=None, **fields)
    assert allows(rules, "yes")
    assert allows(rules, "<think>Hm.</think>\n\nyes")
    assert not allows(rules, " yes")
    assert not allows(rules, "\n\nno")


def test_without_reasoning_or_tools_a_format_is_what_the_client_sent() -> None:
    for where in (Situation(None), Situation(DIALECTS["qwen3"])):
        checked_grammar = present(answer_grammar(Format("regex", "a", "guided_regex"), None, where))
        assert checked_grammar.grammar == Grammar("regex", "a")


def test_tools_alone_are_no_grammar() -> None:
    request = asked()
    assert answer_grammar(None, request.bound_calls(), QWEN) is None
    assert not request.binds_calls
    assert asked(tool_choice="required").binds_calls


@pytest.mark.parametrize(("fields", "param", "said"), [
    ({"tools": [tool(), tool("go", strict=True, **{"not": {}})]}, "tools.1.function.parameters", "not"),
    ({"tools": [tool(strict=True, properties={"a": {"type": "string", "format": "odd"}})]},
     "tools.0.function.parameters", "Unknown format"),
    ({"guided_json": {"type": "string", "format": "odd"}}, "guided_json", "Unknown format"),
    ({"tool_choice": "required", "tools": [tool(f"f{i}", description="x" * 9000) for i in range(8)]}, "tools", "bytes"),
    ({"guided_grammar": 'start: "a"'}, "guided_grammar", "has to be EBNF"),
])  # fmt: skip
def test_what_can_not_be_bound_is_refused_with_its_place(fields: dict[str, Any], param: str, said: str) -> None:
    with refused(param, said):
        grammar(QWEN, **fields)


TREE = {
    "type": "object",
    "$defs": {"unit": {"type": "string", "enum": ["C", "F"]}},
    "properties": {
        "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "unit": {"$ref": "#/$defs/unit"},
        "parts": {"type": "array", "items": {"$ref": "#"}},
        "same": {"type": "array", "items": {"$ref": "#/properties/unit"}},
    },
    "required": ["name", "unit", "parts", "same"],
}
NODE = '{"name": null, "unit": "F", "parts": [], "same": []}'


def glm(**values: str) -> str:
    usual = {"name": "Kiel", "unit": "C", "parts": f"[{NODE}]", "same": '["C"]'}
    return FAMILIES["glm45"].calls([("look", usual | values)])


def tree_grammar() -> Grammar:
    look = tool() | {"function": {"name": "look", "parameters": TREE}}
    return grammar(Situation(DIALECTS["glm"]), tools=[look], tool_choice="required")


def test_parameters_written_one_by_one_may_refer_to_any_part_of_the_schema() -> None:
    rules = tree_grammar()
    assert allows(rules, glm())
    for wrong in ({"parts": "[[[]]]"}, {"unit": "K"}, {"same": '["K"]'}):
        assert not allows(rules, glm(**wrong))


def test_a_text_that_may_also_be_null_is_written_without_quotes_as_it_is_read() -> None:
    rules = tree_grammar()
    for name, value in (("Kiel", "Kiel"), ("null", None)):
        assert allows(rules, glm(name=name))
        values = arguments(DIALECTS["glm"], "look", TREE, [glm(name=name)])
        assert (values["name"], values["unit"], len(values["parts"])) == (value, "C", 1)


def test_parameters_that_refer_to_others_are_bounded_together() -> None:
    """Each of them takes the whole schema along."""
    units = {"unit": {"enum": [f"unit {i}" for i in range(2000)]}}
    many = {"$defs": units, "properties": {f"p{i}": {"type": "array", "items": {"$ref": "#/$defs/unit"}}
                                           for i in range(100)}}  # fmt: skip
    with pytest.raises(RequestError, match=r"'tools\.0\.function\.parameters': too many parameters"):
        grammar(Situation(DIALECTS["glm"]), tools=[tool(**many)], tool_choice="required")


def test_newer_models_of_mistral_are_held_to_the_form_that_their_template_has() -> None:
    """The list form of older models, which they haven't learned, is refused."""
    call = '{"days": 1, "unit": "C"}'
    named_form, list_form = f"[TOOL_CALLS]look[ARGS]{call}", f'[TOOL_CALLS][{{"name": "look", "arguments": {call}}}]'
    for name, fits in (("mistral_v11", (True, False)), ("mistral", (False, True))):
        rules = grammar(Situation(DIALECTS[name]), tool_choice="required")
        assert (allows(rules, named_form), allows(rules, list_form)) == fits
