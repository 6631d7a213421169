"""Calls as a name, followed by a JSON object with the arguments."""

import re
from dataclasses import dataclass
from typing import Any

from app.dialects.call_grammar import CallGrammar, Format, Schemas, const, schema, sequence, tag
from app.dialects.dialect import Form, Tools
from app.dialects.json_value import read_arguments
from app.dialects.parts import Collector
from app.dialects.reader import Mismatch, Reader, Reading, marker_set


@dataclass(frozen=True)
class NamedObjects(Form):
    """`begin name separator {…} end`, alone, or several calls in a section."""

    begin: str  # of a call; of the section where there is one
    separators: tuple[str, ...]  # between name and arguments; "{": none is needed
    name: re.Pattern[str]  # matches the text before the separator; its group is the name
    call: str = ""  # begins each call of a section
    end: str = ""  # ends it
    section_end: str = ""
    # In a grammar: the text between a call's marker and its arguments, and between these and its end. `{number}`: the
    # call's, or its id, as `number` has it.
    head: str = "{name}"
    tail: str = ""
    number: str = "[0-9]{1,3}"

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin,)

    def ends(self, begin: str) -> tuple[str, ...]:
        return (self.section_end or self.end,)

    def call_grammar(self, schemas: Schemas) -> CallGrammar:
        mark = self.call or self.begin
        tags = [self._tag(mark, name, of) for name, of in schemas.items()]
        if not self.call:
            return CallGrammar(tags, (self.begin,))
        return CallGrammar(tags, (self.begin,), self.begin, "", self.section_end)

    def _tag(self, mark: str, name: str, of: Any) -> Format:
        begin, number, rest = self.head.format(name=name, number="\0").partition("\0")
        if not number:
            return tag(mark + begin, schema(of), self.tail + self.end)
        content = sequence({"type": "regex", "pattern": self.number}, const(rest), schema(of))
        return tag(mark + begin, content, self.tail + self.end)

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:
        if not self.call:
            yield from self._read_call(reader, out)
            return
        marks = marker_set(self.call, self.section_end)
        while (yield from reader.pieces(marks, _ignore)) == self.call:
            try:
                yield from self._read_call(reader, out)
            except Mismatch:  # the next call may be correct
                continue

    def _read_call(self, reader: Reader, out: Collector) -> Reading[None]:
        head, mark = yield from reader.until(marker_set(*self.separators))
        if mark == "{":
            reader.unread(mark)
        match = self.name.fullmatch(head)
        if match is None:
            raise Mismatch
        call = out.call(match[1])
        if (yield from reader.skip_space()) in '{"':
            if not (yield from read_arguments(reader, call.add)):
                raise Mismatch
        elif not (self.end and (yield from reader.literal(self.end))):
            raise Mismatch
        call.finish()
        if self.end and not self.call:
            yield from reader.skip_space()
            yield from reader.literal(self.end)


def _ignore(_: str) -> None:
    pass
