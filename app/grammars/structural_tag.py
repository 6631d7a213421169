"""xgrammar's structural tags, which are JSON, as a grammar in llguidance's Lark.

https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html says what they mean. Formats of single tokens, and the
`style` of a schema, are not supported.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance import grammar_from, regex_to_lark

from app.grammars.bounds import check_embedded
from app.grammars.references import check_rule_references, check_schema_references

_ANY = r"/(.|\n)*/"
_DEEPEST = 96  # formats within each other; xgrammar takes 100
_LENIENT = {"x-guidance": {"lenient": True, "coerce_one_of": True}}


def as_lark(tag: dict[str, Any]) -> str:
    """Raises: ValueError that says what is wrong or not supported."""
    rules = _Rules()
    start = rules.expression(_field({"format": rules.modern(tag)}, "format", dict), 0)
    lark = "\n".join(["%llguidance {}", f"start: {start}", *rules.rules])
    if not rules.others:
        return lark
    return json.dumps({"grammars": [{"name": "tag", "lark_grammar": lark}, *rules.others.values()]})


class _Rules:
    def __init__(self) -> None:
        self.rules: list[str] = []
        self.others: dict[str, dict[str, str]] = {}  # grammars of the client's, each with names of its own

    @staticmethod
    def modern(tag: dict[str, Any]) -> Any:
        """The format of a tag, or of one in the older shape with `structures` and `triggers`."""
        if "structures" not in tag:
            return tag.get("format")
        tags = [
            {
                "type": "tag",
                "begin": _field(s, "begin", str),
                "content": {"type": "json_schema", "json_schema": _field(s, "schema", dict)},
                "end": _field(s, "end", str),
            }
            for s in _field(tag, "structures", list)
        ]
        return {"type": "triggered_tags", "triggers": _field(tag, "triggers", list), "tags": tags}

    def expression(self, form: Any, depth: int) -> str:
        """Raises: ValueError."""
        if depth > _DEEPEST:
            raise ValueError(f"formats are nested more than {_DEEPEST} deep")
        kind = _field(form, "type", str)
        make = _FORMATS.get(kind)
        if make is None:
            raise ValueError(f"formats of type '{kind[:64]}' are not supported")
        return make(self, form, depth + 1)

    def const(self, form: dict[str, Any], _depth: int) -> str:
        return json.dumps(_field(form, "value", str))

    def schema(self, form: dict[str, Any], _depth: int) -> str:
        if form.get("style", "json") != "json":
            raise ValueError("a 'style' of json_schema other than 'json' is not supported")
        schema = form.get("json_schema")
        if not isinstance(schema, dict | bool):
            raise ValueError("'json_schema' is not a schema")
        check_schema_references(schema)
        return "%json " + json.dumps(schema | _LENIENT if isinstance(schema, dict) else _LENIENT)

    def text(self, form: dict[str, Any], _depth: int) -> str:
        return self._terminal(self._any(form))

    def regex(self, form: dict[str, Any], _depth: int) -> str:
        return f"/{regex_to_lark(_field(form, 'pattern', str))}/"

    def grammar(self, form: dict[str, Any], _depth: int) -> str:
        text = _field(form, "grammar", str)
        check_embedded(text)
        check_rule_references(text)
        entry = self.others.get(text)
        if entry is None:
            entry = {"name": f"grammar_{len(self.others)}", "lark_grammar": grammar_from("grammar", text)}
            self.others[text] = entry
        return f"@{entry['name']}"

    def sequence(self, form: dict[str, Any], depth: int) -> str:
        return " ".join(self.expression(f, depth) for f in _field(form, "elements", list)) or '""'

    def choice(self, form: dict[str, Any], depth: int) -> str:
        return self._any_of([self.expression(f, depth) for f in _field(form, "elements", list)])

    def tag(self, form: dict[str, Any], depth: int, begin: str | None = None) -> str:
        """`begin`: the tag's own, without a trigger that is matched already."""
        begin = _field(form, "begin", str) if begin is None else begin
        end, content = form.get("end", ""), _field(form, "content", dict)
        ends = [end] if isinstance(end, str) else _texts(form, "end")
        first = [json.dumps(begin)] if begin else []
        if content.get("type") == "any_text" and any(ends):
            return " ".join([*first, self._until(self._any(content), ends)])
        if content.get("type") == "regex" and any(ends):  # in one terminal: it may begin with what the end begins with
            return " ".join([*first, self._until(self.expression(content, depth), ends)])
        last = [self._any_of([json.dumps(e) for e in ends])] if any(ends) else []
        return " ".join([*first, self.expression(content, depth), *last])

    def triggered(self, form: dict[str, Any], depth: int) -> str:
        triggers, parts = _texts(form, "triggers"), []
        if not triggers or not all(triggers):
            raise ValueError("'triggers' are texts, at least one")
        for trigger in triggers:
            tags = [t for t in _field(form, "tags", list) if _field(t, "begin", str).startswith(trigger)]
            rest = [self.tag(t, depth, t["begin"][len(trigger) :]) for t in tags]
            if rest:
                parts.append(f"{self._until(self._any(form), [trigger])} {self._any_of(rest)}")
        if not parts:
            raise ValueError("no tag begins with a trigger")
        one = self._rule(self._any_of(parts))
        text = self._terminal(self._without([*triggers, *_texts(form, "excludes")]))
        if form.get("stop_after_first"):
            return one if form.get("at_least_one") else self._any_of([one, text])
        return f"{one}{'+' if form.get('at_least_one') else '*'} {text}"

    def separated(self, form: dict[str, Any], depth: int) -> str:
        one = self._rule(self._any_of([self.tag(t, depth) for t in _field(form, "tags", list)]))
        separator = _field(form, "separator", str)
        more = f"({json.dumps(separator)} {one})*" if separator else f"{one}*"
        several = one if form.get("stop_after_first") else f"{one} {more}"
        return several if form.get("at_least_one") else f"({several})?"

    def repeated(self, form: dict[str, Any], depth: int) -> str:
        one = self._rule(self.expression(form.get("content"), depth))
        match form["type"]:
            case "optional":
                return f"{one}?"
            case "plus":
                return f"{one}+"
            case "star":
                return f"{one}*"
        least, most = _field(form, "min", int), _field(form, "max", int)
        return f"{one}{{{least},{most if most >= 0 else ''}}}"

    def _until(self, pattern: str, ends: list[str]) -> str:
        """A text up to the first of some markers, and that."""
        name = f"until_{len(self.rules)}"
        self.rules.append(f"{name}[lazy]: {self._terminal(pattern)} {self._any_of(map(json.dumps, ends))}")
        return name

    def _any(self, form: dict[str, Any]) -> str:
        """Any text, as the format has it. Raises: ValueError."""
        most = _field(form, "max_chars", int) if form.get("max_chars") is not None else -1
        return self._without(_texts(form, "excludes"), rf"/(.|\n){{0,{most}}}/" if most >= 0 else _ANY)

    @staticmethod
    def _without(texts: list[str], text: str = _ANY) -> str:
        if not any(texts):
            return text
        some = "|".join(re.escape(text).replace("/", r"\/") for text in texts if text)
        return rf"{text} & ~/(.|\n)*({some})(.|\n)*/"

    def _terminal(self, pattern: str) -> str:
        name = f"TEXT_{len(self.rules)}"
        self.rules.append(f"{name}: {pattern}")
        return name

    def _rule(self, expression: str) -> str:
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name

    @staticmethod
    def _any_of(options: Any) -> str:
        alternatives = list(options)
        if not alternatives:
            raise ValueError("there is nothing to choose from")
        return f"({' | '.join(alternatives)})" if len(alternatives) > 1 else alternatives[0]


_FORMATS: dict[str, Callable[[_Rules, dict[str, Any], int], str]] = {
    "const_string": _Rules.const,
    "json_schema": _Rules.schema,
    "any_text": _Rules.text,
    "regex": _Rules.regex,
    "grammar": _Rules.grammar,
    "sequence": _Rules.sequence,
    "or": _Rules.choice,
    "tag": _Rules.tag,
    "triggered_tags": _Rules.triggered,
    "tags_with_separator": _Rules.separated,
    **dict.fromkeys(("optional", "plus", "star", "repeat"), _Rules.repeated),
}


def _field(form: Any, name: str, kind: type) -> Any:
    value = form.get(name) if isinstance(form, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"'{name}' is missing, or not of the right type")
    return value


def _texts(form: dict[str, Any], name: str) -> list[str]:
    texts = form.get(name) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"'{name}' is not a list of texts")
    return texts
