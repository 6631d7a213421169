"""Calls as a list in Python's syntax: `[name(key="value"), other()]`."""

import ast
import json
import keyword
import re
import unicodedata
import warnings
from dataclasses import dataclass
from typing import Any

from app.dialects.call_grammar import CallGrammar, Schemas, tag
from app.dialects.dialect import Tools
from app.dialects.json_value import read_span
from app.dialects.parts import Collector
from app.dialects.reader import Mismatch, Reader, Reading, marker_set
from app.dialects.values import Spelling, Values

_MOST = 2**16  # characters of a list, which is read at once
_SHOWN = 64  # characters of a name
_HEAD = re.compile(r"\[\s*([A-Za-z_][\w.]*)\s*").fullmatch

_PYTHON = Spelling(
    '"', escapes=True, bare_keys=False, separator=", ", colon=": ", true="True", false="False", null="None"
)


@dataclass(frozen=True)
class CallList:
    """Read as a whole: without a marker, only a complete list is certainly not text."""

    begins: tuple[str, ...]
    end: str = ""

    def first(self, begin: str) -> str:  # noqa: ARG002
        return "["

    def ends(self, begin: str) -> tuple[str, ...]:  # noqa: ARG002
        return (self.end,)

    def call_grammar(self, schemas: Schemas) -> CallGrammar:
        """Without a marker, which not all models of these dialects know.

        A property whose name isn't one of Python's is left out, or, where it is required, refused. Raises: ValueError.
        """
        tags = []
        unheld: dict[str, str] = {}
        for name, of in schemas.items():
            values = Values(_PYTHON, of)
            for needed in (name, *(of.get("required") or ())):
                if not _is_name(needed):
                    raise ValueError(f"this model calls in Python's syntax, in which '{needed[:_SHOWN]}' is no name")
            arguments = values.arguments(lambda key: f"{key}=" if _is_name(key) else "")
            tags.append(tag(f"{name}(", arguments, ")"))
            if values.unheld:
                unheld[name] = values.unheld[0]
        return CallGrammar(tags, tuple(f"[{t['begin']}" for t in tags), "[", ", ", "]", unmarked=True, unheld=unheld)

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:  # noqa: ARG002
        head, mark = yield from reader.until(marker_set("(", "]"))
        named = _HEAD(head)
        if mark != "(" or named is None or named[1] not in tools:
            raise Mismatch
        reader.unread(mark)
        found = [head]
        while True:
            if not (yield from read_span(reader, found.append, python=True)) or sum(map(len, found)) > _MOST:
                raise Mismatch
            text, mark = yield from reader.until(marker_set("(", "]"))
            found.append(text)
            if mark == "]":
                break
            reader.unread(mark)
        for name, arguments in _calls("".join(found) + "]", tools):
            call = out.call(name)
            call.add(arguments)
            call.finish()
        if self.end:
            yield from reader.skip_space()
            yield from reader.literal(self.end)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name


def _calls(text: str, tools: Tools) -> list[tuple[str, str]]:
    """Name and arguments of each. Raises: Mismatch."""
    try:
        with warnings.catch_warnings(action="ignore"):
            parsed = ast.parse(text, mode="eval").body
        return [_call(element, tools) for element in getattr(parsed, "elts", ())]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise Mismatch from None


def _call(element: Any, tools: Tools) -> tuple[str, str]:
    if not isinstance(element, ast.Call) or element.args:
        raise Mismatch
    name = ast.unparse(element.func)
    arguments = {k.arg: ast.literal_eval(k.value) for k in element.keywords}
    if name not in tools or None in arguments:
        raise Mismatch
    return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)
