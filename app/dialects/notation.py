"""Gemma's calls: a name and an object with bare keys, and with special tokens around strings."""

import re
from dataclasses import dataclass
from json.encoder import encode_basestring as quote
from typing import Any

from app.dialects.call_grammar import CallGrammar, Schemas, tag
from app.dialects.dialect import Form, Tools
from app.dialects.parameter_value import ANY, Types, as_json, types_of
from app.dialects.parts import Call, Collector
from app.dialects.reader import HEAD, Mismatch, Reader, Reading, marker_set
from app.dialects.values import Spelling, Values

_LONGEST = 2**20  # characters of a text that is read at once
_NEXT_KEY = re.compile(r""",\s*(?:[}\]]|<|[^\s:=,{}\[\]<][^:=,{}\[\]<]{0,127}[:=])""").match
_BEGINS_KEY = re.compile(r",\s{0,32}(?:[^\s:=,{}\[\]<][^:=,{}\[\]<]{0,127})?").fullmatch
_LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?").fullmatch


@dataclass(frozen=True)
class Notation(Form):
    """`begin call:name{key:value,…} end`."""

    begin: str
    end: str
    string: str  # the token on both sides of a string
    typed: bool = False  # all values are such strings, and what the schema says they are

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

    def ends(self, begin: str) -> tuple[str, ...]:
        return (self.end,)

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:
        head, mark = yield from reader.until(marker_set("{", self.end))
        name = head.strip().removeprefix("call:").strip()
        if mark == self.end or not name:
            raise Mismatch
        call = out.call(name)
        yield from self._read_members(reader, call, tools.get(name) if self.typed else None)
        call.finish()
        yield from reader.skip_space()
        yield from reader.literal(self.end)

    def _read_members(self, reader: Reader, call: Call, schema: Any) -> Reading[None]:
        """Reads an object from after its brace to its end, or to the call's."""
        open_ = ["}"]  # the closing bracket of each open object or list
        before, types = "{", ANY
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
            if (yield from reader.literal(self.end)):
                reader.unread(self.end)
                call.add(("" if before in ("", ", ") else before) + "".join(reversed(open_)))
                return
            if open_[-1] == "}":
                key = yield from self._key(reader)
                types = types_of(schema, key, None)
                before += quote(key) + ": "
                char = yield from reader.skip_space()
            if char in "{[":
                reader.at += 1
                open_.append("}" if char == "{" else "]")
                before += char
                continue
            yield from self._read_scalar(reader, call, before, open_, types if len(open_) == 1 else ANY)
            before = ", "

    def _key(self, reader: Reader) -> Reading[str]:
        """Reads a key, and what stands between it and its value: models also write `=`."""
        if (yield from reader.literal(self.string)):
            key, _ = yield from reader.until(marker_set(self.string))
            yield from reader.skip_space()
            if not (yield from reader.literal(":", "=")):
                raise Mismatch
            return key
        key, _ = yield from reader.until(marker_set(":", "="))
        key = key.strip()
        return key[1:-1] if len(key) > 1 and key[0] == key[-1] and key[0] in "\"'" else key

    def _read_scalar(self, reader: Reader, call: Call, before: str, open_: list[str], types: Types) -> Reading[None]:
        if text_mark := (yield from reader.literal(self.string, "'")):
            yield from self._read_text(reader, _String(call, before, types), text_mark, open_)
            return
        if reader.text.startswith('"', reader.at):
            call.add(before + quote((yield from reader.json_string(_LONGEST))))
            return
        pieces: list[str] = []
        room = _LONGEST
        while True:
            text, mark = yield from reader.until(marker_set(self.string, ",", "}", "]"), room)
            pieces.append(text)
            if mark != self.string:
                reader.unread(mark)
            if (yield from self._ends_value(reader, open_)):
                break
            if mark != self.string:
                reader.at += len(mark)
            pieces.append(mark)
            room -= len(text) + len(mark)
            if room < 0:
                raise Mismatch
        text = "".join(pieces).strip()
        call.add(before + (text if _LITERAL(text) else quote(text)))

    def _read_text(self, reader: Reader, string: "_String", text_mark: str, open_: list[str]) -> Reading[None]:
        """Reads a text to its end: a mark within it is part of it, and the last one may be missing."""
        closing = "".join(reversed(open_)) + self.end
        marks = marker_set(text_mark, closing)
        while True:
            mark = yield from reader.pieces(marks, string.add)
            if mark == text_mark:
                if (yield from self._ends_value(reader, open_)):
                    break
            elif (yield from reader.follows((self.begin,))):
                reader.unread(mark)
                break
            string.add(mark)
        string.finish()

    def _ends_value(self, reader: Reader, open_: list[str]) -> Reading[bool]:
        """Whether what comes next can be behind a value. Reads nothing."""
        while True:
            behind = reader.text[reader.at : reader.at + HEAD].lstrip()
            if behind.startswith(("}", "]", self.end)) or (open_[-1] == "]" and behind.startswith(",")):
                return True
            if _NEXT_KEY(behind):
                return True
            if reader.ended:
                return not behind
            if not (self.end.startswith(behind) or _BEGINS_KEY(behind)):
                return False
            yield


class _String:
    """A text. One that the schema says is something else is passed on as that, when it is whole."""

    def __init__(self, call: Call, before: str, types: Types) -> None:
        self._call, self._before, self._types = call, before, types
        self._held: list[str] | None = [] if types and "string" not in types else None
        if self._held is None:
            self._before += '"'

    def add(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
            return
        self._call.add(self._before + quote(text)[1:-1])
        self._before = ""

    def finish(self) -> None:
        text = '"' if self._held is None else as_json("".join(self._held), self._types)
        self._call.add(self._before + text)
