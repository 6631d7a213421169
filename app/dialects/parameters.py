"""Calls with each argument between tags of its own, as unescaped text."""

import html
import json
import re
from dataclasses import dataclass
from typing import Any

from app.dialects.call_grammar import TEXT, CallGrammar, Format, Schemas, const, optional, schema, sequence, tag
from app.dialects.dialect import Form, Tools
from app.dialects.parameter_value import ANY, ParameterValue, Types, types_of
from app.dialects.parts import Call, Collector
from app.dialects.reader import Mismatch, Reader, Reading, marker_set
from app.dialects.references import resolved, self_contained
from app.dialects.texts import HELD_TEXT, one_of, text_until
from app.dialects.values import is_free

_CHOICES = ("anyOf", "oneOf", "allOf")
_NULLABLE = frozenset({"string", "null"})
_OF_ALL = {"allOf", "anyOf", "maxProperties", "minProperties", "oneOf", "patternProperties"}
_LONGEST = 2**20  # bytes of a schema, as often as its parameters may need it


@dataclass(frozen=True)
class ValueEnd:
    """A marker that ends a value; `follow`: only if one of these, or the end of the text, comes next."""

    marker: str
    follow: tuple[str, ...] = ()
    # The same, for a value that begins on a line of its own and a marker that does not; None: it doesn't end there.
    inline: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Parameters(Form):
    """A section of calls. A call is a head with the name, and parameters. Models may leave out parts of all this."""

    begin: str  # of a section; the same as `call` if there are no sections
    end: str
    call: str  # begins a call's head
    head_ends: tuple[str, ...]
    name: re.Pattern[str]  # matches a head; its group is the name
    close: str  # ends a call
    key: str  # begins a parameter's head
    key_end: str
    key_name: re.Pattern[
        str
    ]  # matches a parameter's head; its group `type` is JSON's name of a type, or `true`, `false`
    value_ends: tuple[ValueEnd, ...]  # only the first is part of the parameter
    head_is_read: bool = True  # False: the end of a head is also the beginning of what follows
    framed: bool = False  # a value that begins on a line of its own ends on one, or before an `inline` end
    undeclared: Types = ANY  # of a parameter that the schema doesn't name
    bare: bool = False  # a call may come without its section
    entities: bool = False  # names have HTML entities
    quotes: tuple[str, str] = ("", "")  # may be around a value
    fillers: tuple[str, ...] = ()  # may stand before and between calls
    # In a grammar: a call's beginning and end, and a parameter's.
    head: str = ""  # with `{name}`
    tail: str = ""
    key_head: str = ""  # with `{name}`, and `{type}` or `{string}` (whether it is one)
    key_tail: str = ""

    def call_grammar(self, schemas: Schemas) -> CallGrammar:
        """Raises: ValueError for too many parameters that refer to others."""
        unheld: dict[str, str] = {}
        tags = [
            tag(self.head.format(name=name), TEXT if is_free(of) else self._arguments(name, of, unheld), self.tail)
            for name, of in schemas.items()
        ]
        if self.begin == self.call:
            return CallGrammar(tags, (self.begin,), separator="\n", unheld=unheld)
        line = "\n" if self.head.endswith("\n") else ""
        return CallGrammar(tags, (self.begin,), self.begin + line, line, line + self.end, unheld=unheld)

    def _arguments(self, name: str, of: Any, unheld: dict[str, str]) -> Format:
        """The parameters that are declared, in their order."""
        properties, required_keys = of.get("properties") or {}, of.get("required") or ()
        whole = json.dumps(of)  # repeated for each parameter with a reference
        if '"$ref"' in whole and len(whole) * len(properties) > _LONGEST:
            raise ValueError("too many parameters in so long a schema whose parts refer to each other")
        undeclared_keys = [f"required.{key}" for key in required_keys if key not in properties]
        for keyword in (*sorted(_OF_ALL & of.keys()), *undeclared_keys):
            unheld[name] = keyword
        parts = []
        for key in properties:
            part, keyword = self._parameter(key, of)
            parts.append((key, part))
            if keyword:
                unheld[name] = f"properties.{key}.{keyword}"
        return sequence(const(""), *(part if key in required_keys else optional(part) for key, part in parts))

    def _parameter(self, key: str, of: Any) -> tuple[Format, str]:
        """The parameter's format, and what of its schema is not seen to."""
        types, part = types_of(of, key, None), of["properties"][key]
        # A value that may be a string has no quotes; if the call says which it is, only a value that has to be one.
        plain = types == {"string"} if "{string}" in self.key_head else "string" in types
        name = html.escape(key) if self.entities else key
        kind = "string" if plain else min(types - {"null"}, default="object")
        begin = self.key_head.format(name=name, type=kind, string=str(plain).lower())
        if plain:
            value, keyword = _text(part, of, types, self.key_tail)
            return sequence(const(begin), value), keyword
        return tag(begin, schema(self_contained(part, of)), self.key_tail), ""

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin, self.call) if self.bare else (self.begin,)

    def first(self, begin: str) -> str:
        return self.call[0] if begin != self.call else ""

    def ends(self, begin: str) -> tuple[str, ...]:
        return (self.end if begin == self.begin else self.close,)

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:
        if begin != self.call:
            yield from self._skip_fillers(reader)
            if not (yield from reader.literal(self.call)):
                raise Mismatch
        while True:
            yield from self._read_call(reader, out, tools, alone=begin == self.call != self.begin)
            if self.begin == self.call:
                return
            yield from self._skip_fillers(reader)
            if (yield from reader.literal(self.call, self.end)) != self.call:
                return

    def _skip_fillers(self, reader: Reader) -> Reading[None]:
        yield from reader.skip_space()
        while self.fillers and (yield from reader.literal(*self.fillers)):
            yield from reader.skip_space()

    def _read_call(self, reader: Reader, out: Collector, tools: Tools, *, alone: bool) -> Reading[None]:
        head, mark = yield from reader.until(marker_set(*self.head_ends))
        if not self.head_is_read:
            reader.unread(mark)
        match = self.name.match(head)
        if match is None:
            raise Mismatch
        name = self._plain(match[1])
        if not name or (alone and name not in tools):
            raise Mismatch
        call = out.call(name)
        if not head.endswith("/"):
            yield from self._read_parameters(reader, call, tools.get(name))
        call.finish()

    def _read_parameters(self, reader: Reader, call: Call, schema: object) -> Reading[None]:
        marks = marker_set(self.key, self.close, self.end, self.call)  # the last two if the call isn't closed
        before = "{"
        while (mark := (yield from reader.pieces(marks, _ignore))) == self.key:
            head, _ = yield from reader.until(marker_set(self.key_end))
            match = self.key_name.match(head)
            if match is None:
                raise Mismatch
            key = self._plain(match["name"])
            types = types_of(schema, key, match.groupdict().get("type"), self.undeclared)
            yield from self._read_value(reader, ParameterValue(call, before, key, types))
            before = ", "
        if before != "{":
            call.add("}")
        if mark != self.close:
            reader.unread(mark)

    def _read_value(self, reader: Reader, value: ParameterValue) -> Reading[None]:
        while reader.at == len(reader.text):
            yield from reader.more()
        is_framed = self.framed and reader.text.startswith("\n", reader.at)
        line = "\n" if is_framed else ""
        is_quoted = self.quotes[0] and (yield from reader.literal(self.quotes[0]))
        before = self.quotes[1] if is_quoted else line
        ends = {before + end.marker: (end, end.follow) for end in self.value_ends}
        if is_framed:
            ends |= {end.marker: (end, end.inline) for end in self.value_ends if end.inline is not None}
        marks = marker_set(*ends)
        value.frame(line)
        while True:
            mark = yield from reader.pieces(marks, value.add)
            end, follow = ends[mark]
            if not follow or (yield from reader.follows(follow)):
                break
            value.add(mark)
        value.finish()
        if end is not self.value_ends[0]:
            reader.unread(end.marker)

    def _plain(self, name: str) -> str:
        return html.unescape(name) if self.entities else name


def _ignore(_: str) -> None:
    pass


def _text(part: Any, of: Any, types: Types, end: str) -> tuple[Format, str]:
    """A value that may be a string, and its end, as the parameter's schema has it; and what is not seen to."""
    part = resolved(part, of)
    choices = [resolved(choice, of) for key in _CHOICES for choice in part.get(key) or ()]
    strings = [choice for choice in choices if choice.get("type") != "null"]
    if len(strings) == 1 and "enum" not in part:
        part = strings[0]
    values = part.get("enum") or ([part["const"]] if "const" in part else [])
    if values:
        plain = {value if isinstance(value, str) else json.dumps(value): None for value in values}
        return sequence(one_of([*plain, *({"null": None} if strings and "null" in types else ())]), const(end)), ""
    if types - _NULLABLE or len(strings) > 1:
        return tag("", TEXT, end), min({key for one in (part, *strings) for key in one} & HELD_TEXT, default="")
    return text_until(end, part, nullable="null" in types)
