"""The grammar of a whole answer: reasoning, then content or, if a request binds them, tool calls."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from app.dialects.call_grammar import TEXT, CallGrammar, const, optional, schema, sequence, tag
from app.dialects.dialect import Dialect
from app.dialects.parts import Content
from app.grammars.checker import GrammarCheck
from app.messages.job import Grammar
from app.openai.structured import Format, content_grammar, refused
from app.openai.tools import BoundCalls

Part = dict[str, Any]  # of a structural tag
_UNWRITABLE = "this model's way to write calls of tools can't be put into a grammar"
_LONGEST = 2**20
_SPACE = {"type": "regex", "pattern": "[ \\n]{0,2}"}


class Situation(NamedTuple):
    """The way in which an answer begins."""

    dialect: Dialect | None  # reads its text; None: it is all content
    begun: bool = False  # within reasoning, with which the prompt ends
    reasons: bool = False  # otherwise: perhaps with reasoning


class AnswerGrammar(NamedTuple):
    """A grammar, and what has to be compiled before it goes to an engine."""

    grammar: Grammar
    checks: Sequence[GrammarCheck]


def answer_grammar(format_: Format | None, calls: BoundCalls | None, where: Situation) -> AnswerGrammar | None:
    """Takes milliseconds: not on an event loop. `format_`: of the content; `calls`: the request's rules for calls.

    None: any text will do. Raises: RequestError that names the field.
    """
    content = None if format_ is None else content_grammar(format_)
    checks = [] if calls is None else list(calls.checks)
    if content is not None and format_ is not None:
        checks.append(GrammarCheck(content, format_.where))
    if calls is None or not (calls.bound or content is not None):
        if content is None or format_ is None:
            return None
        thoughtless = where.dialect is None or not (where.begun or where.reasons or where.dialect.channels)
        if thoughtless:
            return AnswerGrammar(content, checks)
        whole = _check(_behind_thought(_content(content, format_), where, content=True), format_.where)
        return AnswerGrammar(whole.grammar, [*checks, whole])
    grammar = _call_grammar(calls, calls.where or (format_.where if format_ else ""), where)
    if calls.forced:
        whole = _check_calls(_behind_thought(grammar.calls(one=calls.one), where), calls, grammar)
    elif content is None or format_ is None:
        whole = _check_calls(_behind_thought(grammar.in_text(one=calls.one), where, free=True), calls, grammar)
    else:
        forms = [grammar.calls(one=calls.one), _on_channel(_content(content, format_), where)]
        whole = _check(_behind_thought({"type": "or", "elements": forms}, where), format_.where)
    return AnswerGrammar(whole.grammar, [*checks, whole])


def _call_grammar(calls: BoundCalls, param: str, where: Situation) -> CallGrammar:
    dialect = where.dialect
    if dialect is None:
        raise refused(param, _UNWRITABLE)
    try:
        grammar = dialect.call_grammar(calls.schemas)
    except ValueError:
        for name, of in calls.schemas.items():
            try:
                dialect.call_grammar({name: of})
            except ValueError as exc:
                raise refused(calls.places[name], exc) from None
        raise
    if grammar is None:
        raise refused(param, _UNWRITABLE)
    for name in calls.strict & grammar.unheld.keys():
        raise refused(
            calls.places[name], f"{grammar.unheld[name]} can't be enforced in the way this model writes calls"
        )
    return grammar


def _check_calls(form: Part, calls: BoundCalls, grammar: CallGrammar) -> GrammarCheck:
    """A check of a grammar with calls.

    If it is refused, the refusal is for the tool whose schema has no grammar, if one tool is to blame.
    """
    places = [calls.places[name] for name in calls.schemas]

    def tools() -> list[GrammarCheck]:
        return [_check(call, where) for call, where in zip(grammar.tags, places, strict=True)]

    return replace(_check(form, calls.where), parts=tools)


def _check(form: Part, param: str) -> GrammarCheck:
    """Raises: RequestError for one that is too long."""
    text = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
    if len(text) > _LONGEST:
        raise refused(param, f"the grammar of the calls is longer than {_LONGEST} characters")
    return GrammarCheck(Grammar("tag", text), param)


def _content(grammar: Grammar, format_: Format) -> Part:
    """The grammar as a part of a structural tag. Raises: RequestError if it can't be one."""
    match grammar.kind:
        case "json":
            return schema(format_.value)
        case "regex":
            return {"type": "regex", "pattern": grammar.text}
        case "choice":
            return {"type": "or", "elements": [const(text) for text in format_.value]}
        case "grammar":
            if "::=" not in grammar.text:
                raise refused(format_.where, "with reasoning or tools, a grammar has to be EBNF")
            return {"type": "grammar", "grammar": grammar.text}
    if "format" not in format_.value:
        raise refused(format_.where, "with reasoning or tools, a structural tag has to have a 'format'")
    form: Part = format_.value["format"]
    return form


def _on_channel(content: Part, where: Situation) -> Part:
    channels = where.dialect is not None and where.dialect.channels
    return sequence(const("<|channel|>final<|message|>"), content) if channels else content


def _behind_thought(body: Part, where: Situation, *, free: bool = False, content: bool = False) -> Part:
    """`free`: the body is any text, which may begin with reasoning; `content`: it has no channel yet."""
    dialect = where.dialect
    if dialect is None:
        return body
    if dialect.channels:
        body = _on_channel(body, where) if content else body
        reasoning = tag("<|channel|>analysis<|message|>", TEXT, "<|end|><|start|>assistant")
        return body if free else sequence(optional(reasoning), body)
    if not dialect.thoughts or not (where.begun or (where.reasons and not free)):
        return body
    markers = dialect.thoughts[0]
    reasoning = tag("" if where.begun else markers.begin, TEXT, markers.ends[0])
    space = [_SPACE] if Content in dialect.trimmed else []  # which the dialect takes away behind a thought only
    reasoning = sequence(reasoning, *space)
    return sequence(reasoning if where.begun else optional(reasoning), body)
