"""Our grammars in llguidance's form."""

import json
from functools import cache

from llguidance import LLMatcher, LLTokenizer, grammar_from

from app.grammars.bounds import check_counts, check_embedded
from app.grammars.references import check_rule_references, check_schema_references
from app.grammars.structural_tag import as_lark
from app.messages.job import Grammar

_SHOWN = 200  # characters of llguidance's message, which quotes the client


def compiled(grammar: Grammar) -> str:
    """The grammar for an LLMatcher, which may still refuse it. Raises: ValueError if it has no such form."""
    text = grammar.text
    match grammar.kind:
        case "json":
            schema = json.loads(text)
            check_counts(schema)
            check_schema_references(schema)
            return LLMatcher.grammar_from_json_schema(text, overrides={"coerce_one_of": True})
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            return grammar_from("choice", text)
        case "grammar":
            check_embedded(text)
            check_rule_references(text)
            return grammar_from("grammar", text)
        case "tag":
            tag = json.loads(text)
            check_counts(tag)
            return as_lark(tag)


def check(grammar: Grammar) -> None:
    """Takes milliseconds, and tens of them for a large schema. llguidance may end its process, which is another's.

    Raises: ValueError that says what is wrong.
    """
    matcher = LLMatcher(_letters(), compiled(grammar), log_level=0)
    if matcher.is_error():
        raise ValueError(" ".join(matcher.get_error().split())[:_SHOWN])
    if not any(matcher.compute_bitmask()) or matcher.is_error():
        raise ValueError("it allows no text")


@cache
def _letters() -> LLTokenizer:
    return LLTokenizer("byte")
