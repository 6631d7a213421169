"""The API compiles grammars with llguidance, and vLLM with xgrammar: both say the same of what we make."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.dialects.families import DIALECTS
from app.messages.job import Grammar
from app.openai.answer_grammar import Situation
from tests.hostile_grammars import CIRCLES, DEEP
from tests.unit import test_written_arguments as arguments
from tests.unit.test_answer_grammar import CALL, ENDLESS, JSON, WRITABLE, allows, grammar, hermes, tool, written

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

BOTH = [tool(), tool("go")]
TEXTS = [
    "", "No.", "{}", '{"a": 1}', CALL, f"{CALL}\n{hermes('go')}", f"{CALL}{CALL}", f"So: {CALL}", f"{CALL} Done.",
    hermes(arguments='{"days": "one", "unit": "C"}'), f"Hm.</think>\n\n{CALL}", f"<think>Hm.</think>{CALL}",
    '<think>Hm.</think>\n\n{"a": 1}', "Hm.</think>{}", "<think>{}",
]  # fmt: skip


def tried(candidate: Grammar) -> Grammar:
    from app.engines.xgrammar_process import tried  # with torch: no process needs it that only collects

    return tried(candidate)


class Xgrammar:
    def __init__(self) -> None:
        import xgrammar  # with torch

        self._library = xgrammar
        letters = [bytes([byte]) for byte in range(256)]
        self._compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(letters), max_threads=1)

    def compile(self, made: Grammar) -> Any:
        return self._compiler.compile_structural_tag(made.text)

    def matchers(self, made: Grammar) -> Callable[[str], bool]:
        """Whether a whole text fits."""
        compile_ = {
            "json": self._compiler.compile_json_schema,
            "grammar": self._compiler.compile_grammar,
            "tag": self._compiler.compile_structural_tag,
        }[made.kind]
        compiled_grammar = compile_(made.text)

        def fits(text: str) -> bool:
            matcher = self._library.GrammarMatcher(compiled_grammar, terminate_without_stop_token=True)
            return bool(matcher.accept_string(text) and matcher.is_completed())

        return fits

    def allows(self, made: Grammar, text: str) -> bool:
        matcher = self._library.GrammarMatcher(self.compile(made), terminate_without_stop_token=True)
        return bool(matcher.accept_string(text) and matcher.is_completed())


@pytest.fixture(scope="module")
def xgrammar() -> Xgrammar:
    return Xgrammar()


@pytest.mark.parametrize("name", WRITABLE)
def test_xgrammar_takes_what_a_family_is_forced_to_write(xgrammar: Xgrammar, name: str) -> None:
    for is_begun in (False, True):
        where = Situation(DIALECTS[name], begun=is_begun, reasons=True)
        for fields in ({"tool_choice": "required"}, JSON):
            assert not xgrammar.allows(grammar(where, tools=BOTH, **fields), "No.")
        free = grammar(where, tools=BOTH, parallel_tool_calls=False)
        assert xgrammar.allows(free, "No.") != is_begun or not DIALECTS[name].thoughts
    several = name not in ENDLESS
    forced_grammar = grammar(Situation(DIALECTS[name]), tools=BOTH, tool_choice="required", parallel_tool_calls=several)
    assert xgrammar.allows(
        forced_grammar, written(forced_grammar, "<|channel|>commentary" if DIALECTS[name].channels else "")
    )


@pytest.mark.parametrize("fields", [
    {"tool_choice": "required"}, {"tool_choice": "required", "parallel_tool_calls": False},
    {"parallel_tool_calls": False}, {"tools": [tool(strict=True), tool("go")]}, JSON, JSON | {"tools": None},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("begun", [False, True])
def test_both_libraries_say_the_same(xgrammar: Xgrammar, fields: dict[str, Any], begun: bool) -> None:
    tool_grammar = grammar(Situation(DIALECTS["qwen3"], begun=begun, reasons=True), **({"tools": BOTH} | fields))
    assert [text for text in TEXTS if xgrammar.allows(tool_grammar, text)] == [
        text for text in TEXTS if allows(tool_grammar, text)
    ]


@pytest.mark.parametrize("text", [
    'root ::= "SELECT " col\ncol ::= "a" | [0-9]+', 'start: "SELECT " col\ncol: "a" | NUMBER\nNUMBER: /[0-9]+/',
], ids=["EBNF", "Lark"])  # fmt: skip
def test_a_clients_own_grammar_is_the_same_to_both(xgrammar: Xgrammar, text: str) -> None:
    """Lark becomes EBNF in the process that tries it: SGLang takes no other."""
    own_grammar = Grammar("grammar", text)
    assert "::=" in tried(own_grammar).text
    matches = xgrammar.matchers(tried(own_grammar))
    for candidate, fits in {
        "SELECT a": True,
        "SELECT 12": True,
        "SELECT ": False,
        "SELECT b": False,
        "": False,
    }.items():
        assert matches(candidate) == allows(own_grammar, candidate) == fits, candidate


@pytest.mark.parametrize("name", arguments.WRITERS)
@pytest.mark.parametrize("fields", [
    {}, {"tool_choice": "auto"},
    {"tools": [tool("look"), tool("go")], "tool_choice": "auto", "parallel_tool_calls": False}
], ids=str)  # fmt: skip
def test_both_hold_arguments_that_are_not_json_to_the_same(
    xgrammar: Xgrammar, name: str, fields: dict[str, Any]
) -> None:
    call_grammar, write = arguments.taken(name, **fields), arguments.WRITERS[name]
    texts = ["No [1].", *map(write, [*arguments.VALID, *arguments.INVALID])]
    assert [text for text in texts if xgrammar.allows(call_grammar, text)] == [
        text for text in texts if allows(call_grammar, text)
    ]


STRINGS = [
    "", "a", "\t", "\\t", "\\\\", '\\"', "\\n", "\n", "\\u000a", "\\u001F", "\\b", '"', "\\", "\\x", "abc", "abcd",
    "\\t\\n\\r",    "\\t\\n\\r\\f", "\U0001f600" * 3, "\U0001f600" * 4, "\xe9", 'a\\"b', "\0", "a\\",
]  # fmt: skip


@pytest.mark.parametrize("length", [
    {"maxLength": 3}, {"minLength": 1}, {"minLength": 1, "maxLength": 2}, {"minLength": 3, "maxLength": 3},
], ids=str)  # fmt: skip
def test_bounded_strings_are_json_and_have_escapes_each_of_which_is_a_character(
    xgrammar: Xgrammar, length: dict[str, int]
) -> None:
    """xgrammar by itself has raw TABs in them, and nothing that needs an escape. As llguidance."""
    string = {"type": "string", **length}
    schemas = [string, {"type": ["string", "null"], **length}]
    places = [("{}", schema) for schema in schemas]
    of = {"type": "object", "properties": {"a": {"$ref": "#/$defs/s"}}, "required": ["a"], "$defs": {"s": string}}
    places.append(('{{"a": {}}}', of))
    for place, schema in places:
        as_json = Grammar("json", json.dumps(schema))
        as_tag = Grammar("tag", json.dumps({"format": {"type": "json_schema", "json_schema": schema}}))
        for candidate in (as_json, as_tag):
            matches = xgrammar.matchers(tried(candidate))
            for text in STRINGS:
                whole_text = place.format(f'"{text}"')
                fits = _length(text) in range(length.get("minLength", 0), length.get("maxLength", 99) + 1)
                assert matches(whole_text) == allows(candidate, whole_text) == fits, (candidate, whole_text)


def _length(text: str) -> int:
    try:
        return len(json.loads(f'"{text}"'))
    except ValueError:
        return -1


@pytest.mark.parametrize(("pattern", "fits", "breaks"), [
    ('^"+$', ['\\"'], ['"']),
    (r"^\\+$", [r"\\", r"\\\\"], ["\\"]),
    (r"^\t$", [r"\t"], ["\t"]),
    ("^\t$", [r"\t"], ["\t"]),
    ('^a?"[^b]*$', [r"\"", r"a\"xyz", r"\"\t"], ['"', 'a"', '\\"\t', '\\"b']),
    ('^".$', [r"\"x", r"\"\\", r"\"\""], ['\\"\\', '\\""', '"x']),
    (r"^[\t\n]\x0a\u0022$", [r"\t\n\""], ["\t\n\""]),
    ("^(a|b){2}$", ["ab"], ["abc"]),
    (r"^[^b]{1,3}$", ["a"], ["\t", '"', "\\"]),
])  # fmt: skip
def test_patterns_of_strings_make_no_broken_json(
    xgrammar: Xgrammar, pattern: str, fits: list[str], breaks: list[str]
) -> None:
    """xgrammar takes a pattern's own characters as those of the JSON."""
    pattern_grammar = Grammar("json", json.dumps({"type": "string", "pattern": pattern}))
    matches = xgrammar.matchers(tried(pattern_grammar))
    for text in fits:
        assert matches(f'"{text}"'), text
        assert allows(pattern_grammar, f'"{text}"')
    for text in breaks:
        assert not matches(f'"{text}"'), text


def test_xgrammar_survives_what_llguidance_dies_of(xgrammar: Xgrammar) -> None:
    """Nothing has killed it so far. A grammar that it refuses is left to an engine to refuse."""
    for schema in (*DEEP.values(), *CIRCLES.values()):
        assert tried(Grammar("json", json.dumps(schema))).kind == "json"
    odd = Grammar("json", '{"type": "nothing"}')
    assert tried(odd) == odd
