"""Gemma's calls: a name and an object whose keys are bare and whose strings stand between tokens."""

import re
from dataclasses import dataclass
from json.encoder import encode_basestring as quote

from app.dialects.dialect import Form, Tools
from app.dialects.parts import Call, Collector
from app.dialects.reader import Reader, Reading, Unfit, stops
from app.dialects.values import Spelling, Values
from app.dialects.written import Schemas, Written, tag

_LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?").fullmatch


@dataclass(frozen=True)
class Notation(Form):
    """`begin call:name{key:value,…} end`."""

    begin: str
    end: str
    string: str  # stands on both sides of one

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin,)

    def written(self, schemas: Schemas) -> Written:
        """Raises: ValueError for what can't be written."""
        spelling = Spelling(self.string, escapes=False, bare_keys=True, separator=",", colon=":")
        tags = []
        unheld: dict[str, str] = {}
        for name, of in schemas.items():
            values = Values(spelling, of)
            tags.append(tag(f"{self.begin}call:{name}{{", values.arguments(), "}" + self.end))
            if values.unheld:
                unheld[name] = values.unheld[0]
        return Written(tags, (self.begin,), unheld=unheld)

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:  # noqa: ARG002
        head, mark = yield from reader.until(stops("{", self.end))
        name = head.strip().removeprefix("call:").strip()
        if mark == self.end or not name:
            raise Unfit
        call = out.call(name)
        yield from self._read_members(reader, call)
        call.finish()
        yield from reader.skip_space()
        yield from reader.literal(self.end)

    def _read_members(self, reader: Reader, call: Call) -> Reading[None]:
        """Behind the brace of an object, up to its end."""
        open_ = ["}"]  # what ends each object or list that is begun
        before = "{"
        while open_:
            sign = yield from reader.skip_space()
            if sign in "}]":
                if sign != open_.pop():
                    raise Unfit
                reader.at += 1
                call.add(("" if before in ("", ", ") else before) + sign)
                before = ", "
                continue
            if sign == ",":
                reader.at += 1
                continue
            if open_[-1] == "}":
                before += quote((yield from self._key(reader))) + ": "
                sign = yield from reader.skip_space()
            if sign in "{[":
                reader.at += 1
                open_.append("}" if sign == "{" else "]")
                before += sign
                continue
            yield from self._read_scalar(reader, call, before)
            before = ", "

    def _key(self, reader: Reader) -> Reading[str]:
        if (yield from reader.literal(self.string)):
            key, _ = yield from reader.until(stops(self.string))
            yield from reader.skip_space()
            if not (yield from reader.literal(":")):
                raise Unfit
            return key
        key, _ = yield from reader.until(stops(":"))
        key = key.strip()
        return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key

    def _read_scalar(self, reader: Reader, call: Call, before: str) -> Reading[None]:
        if (yield from reader.literal(self.string)):
            string = _String(call, before)
            yield from reader.pieces(stops(self.string), string.add)
            string.finish()
            return
        if reader.text.startswith('"', reader.at):
            call.add(before + quote((yield from reader.json_string(1 << 20))))
            return
        text, mark = yield from reader.until(stops(",", "}", "]"), 1 << 20)
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
