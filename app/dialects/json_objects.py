"""Calls as JSON objects with a name and arguments, alone or in a list."""

from dataclasses import dataclass

from app.dialects.call_grammar import CallGrammar, Schemas, schema, tag
from app.dialects.dialect import Tools
from app.dialects.json_value import read_arguments, read_json
from app.dialects.parts import Call, Collector
from app.dialects.reader import Mismatch, Reader, Reading

_KEYS = frozenset({"name", "arguments", "parameters", "type", "id"})


@dataclass(frozen=True)
class JsonObjects:
    """`{"name": …, "arguments": {…}}`, arguments streamed as they are written."""

    begins: tuple[str, ...]
    end: str = ""
    listed: bool = False  # [{…}, {…}]
    between: str = ""  # separates calls outside of lists
    arguments: str = "arguments"  # their key in a grammar

    def first(self, begin: str) -> str:  # noqa: ARG002
        return "[" if self.listed else "{"

    def ends(self, begin: str) -> tuple[str, ...]:  # noqa: ARG002
        return (self.end,)

    def call_grammar(self, schemas: Schemas) -> CallGrammar:
        mark = "" if "" in self.begins else self.begins[0]
        line = "\n" if self.end and not self.listed else ""
        head = '{"name": "'
        begin, end = ("", "}") if self.listed else (mark + line, "}" + line + self.end)
        tags = [tag(f'{begin}{head}{name}", "{self.arguments}": ', schema(of), end) for name, of in schemas.items()]
        if self.listed:
            return CallGrammar(tags, (mark,), f"{mark}[", ", ", f"]{self.end}")
        return CallGrammar(tags, (mark or head,), separator=self.between or "\n")

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:
        if self.listed:
            reader.at += 1
        separator = "," if self.listed else self.between
        while True:
            if (yield from reader.skip_space()) != "{":
                break
            yield from _read_object(reader, out, tools, alone=not begin)
            if (yield from reader.skip_space()) != separator:
                break
            reader.at += 1
        while (yield from reader.skip_space()) in "]}":  # models often write one too many
            reader.at += 1
        if self.end:
            yield from reader.literal(self.end)


def _read_object(reader: Reader, out: Collector, tools: Tools, *, alone: bool) -> Reading[None]:
    """`alone`: there was no marker, so that only a tool's name makes this a call. Raises: EndOfText, Mismatch."""
    reader.at += 1
    name: str | None = None
    early: list[str] = []  # arguments that come before the name
    call: Call | None = None
    while (char := (yield from reader.skip_space())) != "}":
        if char == ",":
            reader.at += 1
            continue
        key = yield from _key(reader, char)
        if alone and key not in _KEYS:
            raise Mismatch
        value = yield from reader.skip_space()
        if key == "name" and value == '"' and name is None:
            name = yield from reader.json_string()
            if not name or (alone and name not in tools):
                raise Mismatch
        elif key in ("arguments", "parameters") and call is None:
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
