"""Messages that begin with a line of whom they are for: a tool, or all. The prompt has begun the first line."""

import string
from dataclasses import dataclass

from app.dialects.dialect import Form, Tools
from app.dialects.json_value import read_arguments
from app.dialects.parts import Collector
from app.dialects.reader import Mismatch, Reader, Reading, marker_set

_ALL = "all"
_FIRST = string.ascii_letters + string.digits + "_"


@dataclass(frozen=True)
class Recipients(Form):
    """`mark name`, a line feed, and a call's arguments, or an answer's text."""

    mark: str

    @property
    def begins(self) -> tuple[str, ...]:
        return (self.mark, "")

    def first(self, begin: str) -> str:
        return _FIRST

    def read(self, reader: Reader, out: Collector, tools: Tools, begin: str) -> Reading[None]:
        name, _ = yield from reader.until(marker_set("\n"))
        if name == _ALL:
            reader.keep()  # nothing of this is text
            return
        if name not in tools or (yield from reader.skip_space()) != "{":
            raise Mismatch
        call = out.call(name)
        if not (yield from read_arguments(reader, call.add)):
            raise Mismatch
        call.finish()
