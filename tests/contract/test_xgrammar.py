"""The API compiles grammars with llguidance, and vLLM with xgrammar: both say the same of what we make."""

from typing import Any

import pytest

from app.dialects.families import DIALECTS
from app.messages import Grammar
from app.openai.answer_grammar import Situation
from tests.unit import test_written_arguments as arguments
from tests.unit.test_answer_grammar import CALL, JSON, WRITABLE, allows, grammar, hermes, tool, written

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

BOTH = [tool(), tool("go")]
TEXTS = [
    "", "No.", "{}", '{"a": 1}', CALL, f"{CALL}\n{hermes('go')}", f"{CALL}{CALL}", f"So: {CALL}", f"{CALL} Done.",
    hermes(arguments='{"days": "one", "unit": "C"}'), f"Hm.</think>\n\n{CALL}", f"<think>Hm.</think>{CALL}",
    '<think>Hm.</think>\n\n{"a": 1}', "Hm.</think>{}", "<think>{}",
]  # fmt: skip


class Xgrammar:
    def __init__(self) -> None:
        import xgrammar  # with torch

        self._library = xgrammar
        letters = [bytes([byte]) for byte in range(256)]
        self._compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(letters), max_threads=1)

    def compile(self, made: Grammar) -> Any:
        return self._compiler.compile_structural_tag(made.text)

    def allows(self, made: Grammar, text: str) -> bool:
        matcher = self._library.GrammarMatcher(self.compile(made), terminate_without_stop_token=True)
        return bool(matcher.accept_string(text) and matcher.is_completed())


@pytest.fixture(scope="module")
def xgrammar() -> Xgrammar:
    return Xgrammar()


@pytest.mark.parametrize("name", WRITABLE)
def test_xgrammar_takes_what_a_family_is_forced_to_write(xgrammar: Xgrammar, name: str) -> None:
    for begun in (False, True):
        where = Situation(DIALECTS[name], begun=begun, reasons=True)
        for fields in ({"tool_choice": "required"}, JSON):
            assert not xgrammar.allows(grammar(where, tools=BOTH, **fields), "No.")
        free = grammar(where, tools=BOTH, parallel_tool_calls=False)
        assert xgrammar.allows(free, "No.") != begun or not DIALECTS[name].thoughts
    forced = grammar(Situation(DIALECTS[name]), tools=BOTH, tool_choice="required")
    assert xgrammar.allows(forced, written(forced, "<|channel|>commentary" if DIALECTS[name].channels else ""))


@pytest.mark.parametrize("fields", [
    {"tool_choice": "required"}, {"tool_choice": "required", "parallel_tool_calls": False},
    {"parallel_tool_calls": False}, {"tools": [tool(strict=True), tool("go")]}, JSON, JSON | {"tools": None},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("begun", [False, True])
def test_both_libraries_say_the_same(xgrammar: Xgrammar, fields: dict[str, Any], begun: bool) -> None:
    made = grammar(Situation(DIALECTS["qwen3"], begun=begun, reasons=True), **({"tools": BOTH} | fields))
    assert [text for text in TEXTS if xgrammar.allows(made, text)] == [text for text in TEXTS if allows(made, text)]


@pytest.mark.parametrize("name", arguments.WRITERS)
@pytest.mark.parametrize("fields", [
    {}, {"tool_choice": "auto"},
    {"tools": [tool("look"), tool("go")], "tool_choice": "auto", "parallel_tool_calls": False}
], ids=str)  # fmt: skip
def test_both_hold_arguments_that_are_not_json_to_the_same(
    xgrammar: Xgrammar, name: str, fields: dict[str, Any]
) -> None:
    made, write = arguments.taken(name, **fields), arguments.WRITERS[name]
    texts = ["No [1].", *map(write, [*arguments.VALID, *arguments.INVALID])]
    assert [text for text in texts if xgrammar.allows(made, text)] == [text for text in texts if allows(made, text)]
