"""Calls with each argument, and each part of an argument, between tags of its own name, as MiniMax M3 writes them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring as quote
from typing import Any

from app.dialects.call_grammar import TEXT, CallGrammar, Schemas, const, sequence, tag
from app.dialects.dialect import Form, Tools
from app.dialects.element_values import ITEM, ElementValues
from app.dialects.parameter_value import ParameterValue, as_json, types_in
from app.dialects.parts import Call, Collector
from app.dialects.reader import Mismatch, Reader, Reading, marker_set
from app.dialects.references import resolved
from app.dialects.values import is_free

_INVOKE = re.compile(r"""invoke\s+name=["']([^"'<>]+)["']""").fullmatch
_NAME = re.compile(r"[^\s<>/]+").fullmatch
_TEXT = frozenset({"string"})
_LONGEST = 2**20  # characters of an argument that is read at once
_DEEPEST = 32  # parts within each other


@dataclass(frozen=True)
class Elements(Form):
    """A section of calls; `mark` stands before each tag."""

    mark: str
    section: str = "tool_call"

    @property
    def begins(self) -> tuple[str, ...]:
        return (f"{self.mark}<{self.section}>",)

    def ends(self, begin: str) -> tuple[str, ...]:
        return (f"{self.mark}</{self.section}>",)

    def call_grammar(self, schemas: Schemas) -> CallGrammar:
        """Raises: ValueError for too large a schema, and for an argument whose name is no tag."""
        unheld: dict[str, str] = {}
        tags = []
        for name, of in schemas.items():
            values = ElementValues(self.mark, of)
            arguments = TEXT if is_free(of) else sequence(const(""), *values.members(of))
            tags.append(tag(f'{self.mark}<invoke name="{name}">', arguments, f"{self.mark}</invoke>\n"))
            if values.unheld:
                unheld[name] = values.unheld[0]
        (begin,), (end,) = self.begins, self.ends("")
        return CallGrammar(tags, (begin,), f"{begin}\n", "", end, unheld=unheld)

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:
        while (head := (yield from self._tag(reader))) != f"/{self.section}":
            match = _INVOKE(head)
            if match is None:
                raise Mismatch
            call = out.call(match[1])
            yield from self._read_arguments(reader, call, tools.get(match[1]))
            call.finish()

    def _read_arguments(self, reader: Reader, call: Call, root: Any) -> Reading[None]:
        before = "{"
        while (key := (yield from self._tag(reader))) != "/invoke":
            if not _NAME(key):
                raise Mismatch
            part = _property(root, key, root)
            if types_in(part, root) == _TEXT:
                yield from self._read_text(reader, ParameterValue(call, before, key, _TEXT), f"</{key}>")
            else:
                value = yield from self._read_value(reader, key, part, root, _DEEPEST)
                call.add(f"{before}{quote(key)}: {value}")
            before = ", "
        if before != "{":
            call.add("}")

    def _read_text(self, reader: Reader, value: ParameterValue, end: str) -> Reading[None]:
        """Passes a text on as it comes."""
        while True:
            yield from reader.pieces(marker_set(self.mark), value.add)
            if (yield from reader.literal(end)):
                break
            value.add(self.mark)
        value.finish()

    def _read_value(self, reader: Reader, key: str, part: Any, root: Any, deepest: int) -> Reading[str]:
        """JSON of what stands between a tag and its end."""
        if not deepest:
            raise Mismatch
        text, _ = yield from reader.until(marker_set(self.mark), _LONGEST)
        reader.unread(self.mark)
        inner = yield from self._tag(reader)
        types = types_in(part, root)
        if inner == f"/{key}":
            if not text.strip() and types & {"array", "object"}:
                return "[]" if "array" in types else "{}"
            return as_json(text, types)
        members: dict[str, list[str]] = {}
        while inner != f"/{key}":
            if not _NAME(inner):
                raise Mismatch
            is_item = inner == ITEM and "object" not in types
            of = resolved(part, root).get("items") if is_item else _property(part, inner, root)
            value = yield from self._read_value(reader, inner, of, root, deepest - 1)
            members.setdefault(inner, []).append(value)
            inner = yield from self._tag(reader)
        if "object" not in types and members.keys() == {ITEM}:
            return _listed(members[ITEM])
        pairs = ((name, values[0] if len(values) == 1 else _listed(values)) for name, values in members.items())
        return "{" + ", ".join(f"{quote(name)}: {value}" for name, value in pairs) + "}"

    def _tag(self, reader: Reader) -> Reading[str]:
        """Reads what is within the next tag, before which there is only whitespace."""
        yield from reader.skip_space()
        if not (yield from reader.literal(f"{self.mark}<")):
            raise Mismatch
        return (yield from reader.until(marker_set(">")))[0]


def _listed(values: list[str]) -> str:
    return f"[{', '.join(values)}]"


def _property(part: Any, key: str, root: Any) -> Any:
    of = resolved(part, root)
    properties = of.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    return of.get("additionalProperties")
