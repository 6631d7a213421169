"""Calls whose name stands before a JSON object with the arguments."""

import re
from dataclasses import dataclass

from app.dialects.dialect import Form, Tools
from app.dialects.json_value import read_span
from app.dialects.parts import Collector
from app.dialects.reader import Reader, Reading, Unfit, stops


@dataclass(frozen=True)
class NamedObjects(Form):
    """`begin name separator {…} end`, alone, or several calls in a section."""

    begin: str  # of a call; of the section where there is one
    separators: tuple[str, ...]  # between name and arguments; "{": none is needed
    name: re.Pattern[str]  # matches what stands before the separator; its group is the name
    call: str = ""  # begins each call of a section
    end: str = ""  # ends it
    section_end: str = ""

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.begin,)

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:  # noqa: ARG002
        if not self.call:
            yield from self._read_call(reader, out)
            return
        marks = stops(self.call, self.section_end)
        while (yield from reader.pieces(marks, _ignore)) == self.call:
            try:
                yield from self._read_call(reader, out)
            except Unfit:  # the next one may be well
                continue

    def _read_call(self, reader: Reader, out: Collector) -> Reading[None]:
        head, mark = yield from reader.until(stops(*self.separators))
        if mark == "{":
            reader.unread(mark)
        named = self.name.fullmatch(head)
        if named is None:
            raise Unfit
        call = out.call(named[1])
        if (yield from reader.skip_space()) == "{":
            if not (yield from read_span(reader, call.add)):
                raise Unfit
        elif not (self.end and (yield from reader.literal(self.end))):
            raise Unfit
        call.finish()


def _ignore(_: str) -> None:
    pass
