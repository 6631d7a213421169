"""A process that compiles with xgrammar what engines will: to see whether it survives that.

Without their vocabulary, so it is as fast with any model's. What xgrammar refuses, the engine refuses itself. The
engine gets the grammar that this one answers, in which strings are JSON's, and which is EBNF if it was Lark: SGLang
takes no other.
"""

import json
from typing import Any

import xgrammar

from app.engines.xgrammar_strings import has_bounds, with_escapes, with_patterns
from app.grammars.serving import serve_checks
from app.messages.job import Grammar

_COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)]), max_threads=1, cache_enabled=False
)


def tried(grammar: Grammar) -> Grammar:
    """The grammar for the engine."""
    try:
        candidate = _rewritten(grammar)
        _compile(candidate)
    except (RuntimeError, ValueError, TypeError, KeyError):  # all that is wrong with a grammar
        return grammar
    return candidate


def _rewritten(grammar: Grammar) -> Grammar:
    if grammar.kind == "tag":
        tag = json.loads(grammar.text)
        new_tag = _format(tag)
        return grammar if new_tag == tag else Grammar("tag", json.dumps(new_tag, ensure_ascii=False))
    if grammar.kind == "grammar" and not _is_ebnf(grammar.text):
        return Grammar("grammar", str(xgrammar.Grammar.from_lark(grammar.text)))
    if grammar.kind != "json":
        return grammar
    form = _json(json.loads(grammar.text))
    if form["type"] == "grammar":
        return Grammar("grammar", form["grammar"])
    return Grammar("json", json.dumps(form["json_schema"], ensure_ascii=False))


def _format(value: Any) -> Any:
    """A structural tag's, with its schemas changed."""
    if isinstance(value, list):
        return [_format(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "json_schema" and isinstance(value.get("json_schema"), dict):
        return _json(value["json_schema"])
    return {key: with_patterns(inner) if key == "schema" else _format(inner) for key, inner in value.items()}


def _json(schema: Any) -> dict[str, Any]:
    """The schema as a format of a structural tag."""
    schema = with_patterns(schema)
    if not has_bounds(schema):
        return {"type": "json_schema", "json_schema": schema}
    ebnf = str(xgrammar.Grammar.from_json_schema(json.dumps(schema)))
    return {"type": "grammar", "grammar": with_escapes(ebnf)}


def _compile(grammar: Grammar) -> None:
    """Compiles a grammar, of each kind as vLLM and SGLang do."""
    text = grammar.text
    match grammar.kind:
        case "json":
            _COMPILER.compile_json_schema(text)
        case "regex":
            _COMPILER.compile_regex(text)
        case "choice":
            _COMPILER.compile_grammar("root ::= " + " | ".join(map(json.dumps, json.loads(text))))
        case "grammar":
            _COMPILER.compile_grammar(text)
        case "tag":
            _compile_tag(json.loads(text))


def _is_ebnf(text: str) -> bool:
    return "::=" in text


def _compile_tag(tag: dict[str, Any]) -> None:
    if "structures" not in tag:
        _COMPILER.compile_structural_tag(json.dumps(tag))
        return
    for structure in tag["structures"]:  # the older shape
        _COMPILER.compile_json_schema(json.dumps(structure["schema"]))


if __name__ == "__main__":
    serve_checks(tried, besides=True)
