"""The parser of one choice's text: pieces of any size in, parts out, the same however the text was cut."""

from collections.abc import Set

from app.dialects.dialect import Dialect, Tools
from app.dialects.parts import Collector, Part
from app.dialects.reader import Reader
from app.dialects.scanner import Scanner


class OutputParser:
    """`tools`: the JSON schema of each offered tool's parameters by its name; without any, text is never a call.

    `begun`: the prompt ended within reasoning; `over`: behind it. Nothing is raised whatever the text is.
    """

    def __init__(
        self,
        dialect: Dialect,
        tools: Tools,
        *,
        begun: bool = False,
        over: bool = False,
        reader: Reader | None = None,
        out: Collector | None = None,
    ) -> None:
        """`reader` and `out`: of a subclass, which wants to know more."""
        self._reader = Reader() if reader is None else reader
        self._out = Collector(dialect.trimmed, self._reader.release) if out is None else out
        self._reading = Scanner(dialect, tools, self._reader, self._out, begun=begun, over=over).run()
        next(self._reading, None)

    @property
    def unfinished(self) -> Set[int]:
        """The calls so far whose arguments are not whole: of those that have ended, the broken ones."""
        return self._out.unfinished

    def feed(self, text: str) -> list[Part]:
        reader = self._reader
        if not text:
            return []
        if reader.special_chars is not None:
            for char in reader.special_chars:
                if char in text:
                    break
            else:
                reader.each(text)
                return self._out.drain()
        reader.push(text)
        next(self._reading, None)
        return self._out.drain()

    def close(self) -> list[Part]:
        """The last parts, at the end of the text."""
        self._reader.ended = True
        for _ in self._reading:
            pass
        return self._out.drain()
