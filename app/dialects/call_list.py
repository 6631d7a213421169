"""Calls as a list in Python's syntax: `[name(key="value"), other()]`."""

import ast
import json
import re
import warnings
from dataclasses import dataclass
from typing import Any

from app.dialects.call_grammar import Schemas
from app.dialects.dialect import Tools
from app.dialects.json_value import read_span
from app.dialects.parts import Collector
from app.dialects.reader import Mismatch, Reader, Reading, marker_set

_MOST = 2**16  # characters of a list, which is parsed at once
_HEAD = re.compile(r"\[\s*([A-Za-z_][\w.]*)\s*").fullmatch


@dataclass(frozen=True)
class CallList:
    """Read as a whole: without a marker, only a complete list is certainly not text."""

    begins: tuple[str, ...]
    end: str = ""

    def first(self, begin: str) -> str:  # noqa: ARG002
        return "["

    def call_grammar(self, schemas: Schemas) -> None:
        """None: a JSON schema can't describe values in Python's syntax."""

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
