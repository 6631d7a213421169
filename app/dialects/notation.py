"""Gemma's calls: a name and an object with bare keys, and with special tokens around strings."""

import re
from dataclasses import dataclass
from json.encoder import encode_basestring as quote

from app.dialects.call_grammar import CallGrammar, Schemas, tag
from app.dialects.dialect import Form, Tools
from app.dialects.parts import Call, Collector
from app.dialects.reader import Mismatch, Reader, Reading, marker_set
from app.dialects.values import Spelling, Values

_LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?").fullmatch


@dataclass(frozen=True)
class Notation(Form):
    """`begin call:name{key:value,…} end`."""

    begin: str
    end: str
    string: str  # the token on both sides of a string

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin,)

    def call_grammar(self, schemas: Schemas) -> CallGrammar:
        """Raises: ValueError for what can't be written."""
        spelling = Spelling(self.string, escapes=False, bare_keys=True, separator=",", colon=":")
        tags = []
        unheld: dict[str, str] = {}
        for name, of in schemas.items():
            values = Values(spelling, of)
            tags.append(tag(f"{self.begin}call:{name}{{", values.arguments(), "}" + self.end))
            if values.unheld:
                unheld[name] = values.unheld[0]
        return CallGrammar(tags, (self.begin,), unheld=unheld)

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:  # noqa: ARG002
        head, mark = yield from reader.until(marker_set("{", self.end))
        name = head.strip().removeprefix("call:").strip()
        if mark == self.end or not name:
            raise Mismatch
        call = out.call(name)
        yield from self._read_members(reader, call)
        call.finish()
        yield from reader.skip_space()
        yield from reader.literal(self.end)

    def _read_members(self, reader: Reader, call: Call) -> Reading[None]:
        """Reads an object from after its brace to its end."""
        open_ = ["}"]  # the closing bracket of each open object or list
        before = "{"
        while open_:
            char = yield from reader.skip_space()
            if char in "}]":
                if char != open_.pop():
                    raise Mismatch
                reader.at += 1
                call.add(("" if before in ("", ", ") else before) + char)
                before = ", "
                continue
            if char == ",":
                reader.at += 1
                continue
            if open_[-1] == "}":
                before += quote((yield from self._key(reader))) + ": "
                char = yield from reader.skip_space()
            if char in "{[":
                reader.at += 1
                open_.append("}" if char == "{" else "]")
                before += char
                continue
            yield from self._read_scalar(reader, call, before)
            before = ", "

    def _key(self, reader: Reader) -> Reading[str]:
        if (yield from reader.literal(self.string)):
            key, _ = yield from reader.until(marker_set(self.string))
            yield from reader.skip_space()
            if not (yield from reader.literal(":")):
                raise Mismatch
            return key
        key, _ = yield from reader.until(marker_set(":"))
        key = key.strip()
        return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key

    def _read_scalar(self, reader: Reader, call: Call, before: str) -> Reading[None]:
        if (yield from reader.literal(self.string)):
            string = _String(call, before)
            yield from reader.pieces(marker_set(self.string), string.add)
            string.finish()
            return
        if reader.text.startswith('"', reader.at):
            call.add(before + quote((yield from reader.json_string(1 << 20))))
            return
        text, mark = yield from reader.until(marker_set(",", "}", "]"), 1 << 20)
        reader.unread(mark)
        text = text.strip()
        call.add(before + (text if _LITERAL(text) else quote(text)))


class _String:
    def __init__(self, call: Call, before: str) -> None:
        self._call, self._before = call, before + '"'

    def add(self, text: str) -> None:
        self._call.add(self._before + quote(text)[1:-1])
        self._before = ""

    def finish(self) -> None:
        self._call.add(self._before + '"')
