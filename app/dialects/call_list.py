"""Calls in Python's syntax: a list, `[name(key="value"), other()]`, or a line for each."""

import ast
import json
import keyword
import re
import unicodedata
import warnings
from dataclasses import dataclass, replace
from typing import Any

from app import json_bytes
from app.dialects.call_grammar import CallGrammar, Schemas, tag
from app.dialects.dialect import Form, Tools
from app.dialects.json_value import read_span
from app.dialects.parameter_value import as_json, types_of
from app.dialects.parts import Collector
from app.dialects.reader import Mismatch, Reader, Reading, marker_set
from app.dialects.values import Spelling, Values

_MOST = 2**16  # characters of a list, which is read at once
_SHOWN = 64  # characters of a name
_HEAD = re.compile(r"\s*([A-Za-z_][\w.]*)\s*").fullmatch
_STRINGS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_BETWEEN = re.compile(r"\s*,?\s*[\w.]*\s*").fullmatch
_TEXT = frozenset({"string"})
_JSON_WORDS = {"true": True, "false": False, "null": None}  # models write these, too

_PYTHON = Spelling(
    '"', escapes=True, bare_keys=False, separator=", ", colon=": ", true="True", false="False", null="None"
)


@dataclass(frozen=True)
class CallList(Form):
    """Read as a whole: without a marker, only a complete list is certainly not text."""

    begins: tuple[str, ...] = ()
    end: str = ""
    lines: bool = False  # a call on each line, instead of a list
    inline: bool = False  # a list may stand behind text, without a marker

    def of(self, tools: Tools) -> Form:
        return replace(self, begins=(*self.begins, *(f"[{name}(" for name in tools))) if self.inline else self

    def first(self, begin: str) -> str:
        return "" if self.lines or begin[:1] == "[" else "["

    def ends(self, begin: str) -> tuple[str, ...]:
        return () if begin[:1] == "[" else (self.end,)

    def call_grammar(self, schemas: Schemas) -> CallGrammar:
        """A grammar without a marker where one may be left out, since not all models of such a dialect know it.

        A property whose name isn't one of Python's is left out, or, where it is required, refused. Raises: ValueError.
        """
        tags = []
        unheld: dict[str, str] = {}
        for name, of in schemas.items():
            values = Values(_PYTHON, of)
            for identifier in (name, *(of.get("required") or ())):
                if not _is_name(identifier):
                    raise ValueError(
                        f"this model calls in Python's syntax, in which '{identifier[:_SHOWN]}' is no name"
                    )
            arguments = values.arguments(lambda key: f"{key}=" if _is_name(key) else "")
            tags.append(tag(f"{name}(", arguments, ")"))
            if values.unheld:
                unheld[name] = values.unheld[0]
        if "" in self.begins:
            triggers = tuple(f"[{t['begin']}" for t in tags)
            return CallGrammar(tags, triggers, "[", ", ", "]", unmarked=True, unheld=unheld)
        mark = self.begins[0]
        begin, between, end = (f"{mark}\n", "\n", f"\n{self.end}") if self.lines else (f"{mark}[", ", ", f"]{self.end}")
        return CallGrammar(tags, (mark,), begin, between, end, unheld=unheld)

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:
        over = self.end if self.lines else "]"
        if begin[:1] == "[":
            reader.unread(begin)
        if not self.lines:
            reader.at += 1
        head, mark = yield from reader.until(marker_set("(", over))
        match = _HEAD(head)
        if mark != "(" or match is None or match[1] not in tools:
            raise Mismatch
        pieces, size, count = ["[", head], len(head), 2
        while mark == "(":
            reader.unread(mark)
            whole = yield from read_span(reader, pieces.append, python=True)
            size, count = size + sum(map(len, pieces[count:])), len(pieces)
            if not whole or size > _MOST:
                raise Mismatch
            text, mark = yield from reader.until(marker_set("(", over))
            if not _BETWEEN(text):
                raise Mismatch
            pieces.append(f",{text}" if self.lines else text)
        pieces.append("]")
        for name, arguments in _calls("".join(pieces), tools):
            call = out.call(name)
            call.add(arguments)
            call.finish()
        if self.end and not self.lines:
            yield from reader.skip_space()
            yield from reader.literal(self.end)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name


def _calls(text: str, tools: Tools) -> list[tuple[str, str]]:
    """Name and arguments of each. Raises: Mismatch."""
    try:
        with warnings.catch_warnings(action="ignore"):
            node = ast.parse(_STRINGS.sub(_on_one_line, text), mode="eval").body
        return [_call(element, tools) for element in getattr(node, "elts", ())]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise Mismatch from None


class _Words(ast.NodeTransformer):
    """JSON's words as Python's."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node


_WORDS = _Words()


def _on_one_line(string: re.Match[str]) -> str:
    """A string in which a model has not escaped its line feeds."""
    return string[0].replace("\n", "\\n")


def _call(element: Any, tools: Tools) -> tuple[str, str]:
    if not isinstance(element, ast.Call) or element.args:
        raise Mismatch
    name = ast.unparse(element.func)
    arguments = {
        k.arg: _typed(ast.literal_eval(_WORDS.visit(k.value)), k.arg, tools.get(name)) for k in element.keywords
    }
    if name not in tools or None in arguments:
        raise Mismatch
    try:
        return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except ValueError:  # an infinite number, which JSON doesn't have
        return name, json_bytes.dumps(arguments).decode()


def _typed(value: Any, key: str | None, schema: Any) -> Any:
    """A text as what the schema says it is: some chat templates put all values into quotes."""
    types = types_of(schema, key or "", None) if isinstance(value, str) else _TEXT
    return json.loads(as_json(value, types)) if types and "string" not in types else value
