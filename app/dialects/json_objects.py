"""Calls as JSON objects with a name and arguments, alone or in a list."""

from dataclasses import dataclass
from typing import Any

from app.dialects.call_grammar import CallGrammar, Format, Schemas, const, schema, sequence, tag
from app.dialects.dialect import Form, Tools
from app.dialects.json_value import read_arguments, read_json
from app.dialects.parts import Call, Collector
from app.dialects.reader import Mismatch, Reader, Reading

_KEYS = frozenset({"name", "arguments", "parameters", "type", "id"})


@dataclass(frozen=True)
class JsonObjects(Form):
    """`{"name": …, "arguments": {…}}`, arguments streamed as they are written."""

    begins: tuple[str, ...] = ()  # one that begins with a brace is part of the object
    end: str = ""
    listed: bool = False  # [{…}, {…}]
    between: str = ""  # separates calls outside of lists
    arguments: str = "arguments"  # their key in a grammar; "arguments" and "parameters" are always read
    name: str = "name"  # the name's key
    number: str = ""  # the key of a call's number, which comes first in a grammar
    keyed: bool = False  # {name: {…}}
    offered: bool = False  # it is a call only with the name of an offered tool, though there is a marker

    def first(self, begin: str) -> str:
        return "[" if self.listed else "" if begin[:1] == "{" else "{"

    def ends(self, begin: str) -> tuple[str, ...]:
        return (self.end,)

    def call_grammar(self, schemas: Schemas) -> CallGrammar:
        mark = "" if "" in self.begins else self.begins[0]
        line = "\n" if self.end and not self.listed else ""
        several = self.listed or (self.between == "\n" and self.end)
        begin, end = ("", "}") if several else (mark + line, "}" + line + self.end)
        tags = [self._tag(begin, name, of, end) for name, of in schemas.items()]
        if self.listed and not mark:
            return CallGrammar(tags, tuple(f"[{t['begin']}" for t in tags), "[", ", ", "]", unmarked=True)
        if self.listed:
            return CallGrammar(tags, (mark,), f"{mark}[", ", ", f"]{self.end}")
        if several:
            return CallGrammar(tags, (mark,), f"{mark}\n", "\n", f"\n{self.end}")
        return CallGrammar(tags, (mark or '{"name": "',), separator=self.between or "\n")

    def _tag(self, begin: str, name: str, of: Any, end: str) -> Format:
        if self.keyed:
            return tag(f'{begin}{{"{name}": ', schema(of), end)
        head = f'"{self.name}": "{name}", "{self.arguments}": '
        if not self.number:
            return tag(f"{begin}{{{head}", schema(of), end)
        number = {"type": "regex", "pattern": "[0-9]{1,3}"}
        return tag(f'{begin}{{"{self.number}": "', sequence(number, const(f'", {head}'), schema(of)), end)

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:
        if begin[:1] == "{":
            reader.unread(begin)
        elif self.listed:
            reader.at += 1
        separator = "," if self.listed else self.between
        calls, alone = out.calls, self.offered or begin[:1] in ("", "{")
        while True:
            if (yield from reader.skip_space()) != "{":
                if alone and out.calls == calls:
                    raise Mismatch
                break
            if self.keyed:
                yield from _read_keyed(reader, out)
            else:
                yield from _read_object(self, reader, out, tools, alone=alone)
            following = yield from reader.skip_space()
            if following == separator:
                reader.at += 1
            elif separator != "\n" or following != "{":
                break
        while (yield from reader.skip_space()) in "]}":  # models often write one too many
            reader.at += 1
        if self.end:
            yield from reader.literal(self.end)


def _read_keyed(reader: Reader, out: Collector) -> Reading[None]:
    """Raises: EndOfText, Mismatch."""
    reader.at += 1
    name = yield from _key(reader, (yield from reader.skip_space()))
    if not name:
        raise Mismatch
    yield from _read_arguments(reader, out.call(name), [])
    if (yield from reader.skip_space()) == "}":
        reader.at += 1


def _read_object(form: JsonObjects, reader: Reader, out: Collector, tools: Tools, *, alone: bool) -> Reading[None]:
    """`alone`: only a tool's name makes this a call. Raises: EndOfText, Mismatch."""
    reader.at += 1
    name: str | None = None
    early: list[str] = []  # arguments that come before the name
    call: Call | None = None
    while (char := (yield from reader.skip_space())) != "}":
        if char == ",":
            reader.at += 1
            continue
        key = yield from _key(reader, char)
        if alone and key not in (*_KEYS, form.name, form.arguments):
            raise Mismatch
        value = yield from reader.skip_space()
        if key == form.name and value == '"' and name is None:
            name = yield from reader.json_string()
            if not name or (alone and name not in tools):
                raise Mismatch
        elif key in ("arguments", "parameters", form.arguments) and call is None:
            call = None if name is None else out.call(name)
            yield from _read_arguments(reader, call, early)
        else:
            yield from read_json(reader, _ignore)
    reader.at += 1
    if name is None:
        raise Mismatch
    if call is None:
        if alone and not early:
            raise Mismatch
        call = out.call(name)
        call.add("".join(early))
        call.finish()


def _read_arguments(reader: Reader, call: Call | None, early: list[str]) -> Reading[None]:
    """Reads them into `call`, or, before its name is known, into `early`. Raises: EndOfText, Mismatch."""
    if not (yield from read_arguments(reader, early.append if call is None else call.add)):
        raise Mismatch
    if call is not None:
        call.finish()


def _key(reader: Reader, char: str) -> Reading[str]:
    if char != '"':
        raise Mismatch
    key = yield from reader.json_string()
    if (yield from reader.skip_space()) != ":":
        raise Mismatch
    reader.at += 1
    return key


def _ignore(_: str) -> None:
    pass
