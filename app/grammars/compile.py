"""Our grammars as llguidance's."""

import json

from llguidance import LLMatcher, grammar_from

from app.grammars.structural_tag import as_lark
from app.messages import Grammar

_SHOWN = 200  # characters of what llguidance says, in which the client's own text stands


def compiled(grammar: Grammar) -> str:
    """For an LLMatcher, which may still refuse it. Raises: ValueError for what has no such form."""
    text = grammar.text
    match grammar.kind:
        case "json":
            return LLMatcher.grammar_from_json_schema(text, overrides={"coerce_one_of": True})
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            return grammar_from("choice", text)
        case "grammar":
            return grammar_from("grammar", text)
        case "tag":
            return as_lark(json.loads(text))


def check(grammar: Grammar) -> None:
    """Takes milliseconds, and tens of them for a large schema. Raises: ValueError that says what is wrong."""
    wrong, said = LLMatcher.validate_grammar_with_warnings(compiled(grammar))
    if wrong:
        raise ValueError(" ".join(said[0].split())[:_SHOWN])
