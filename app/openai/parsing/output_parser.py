"""The parser of one choice's text: pieces of any size in, parts out, the same however the text was cut."""

from app.openai.parsing.dialect import Dialect, Tools
from app.openai.parsing.parts import Collector, Part
from app.openai.parsing.reader import Reader
from app.openai.parsing.scanner import Scanner


class OutputParser:
    """`tools`: the JSON schema of each offered tool's parameters by its name; without any, text is never a call.

    `begun`: the prompt ended within reasoning. Nothing is raised whatever the text is.
    """

    def __init__(self, dialect: Dialect, tools: Tools, *, begun: bool = False) -> None:
        self._reader = Reader()
        self._out = Collector(dialect.trimmed)
        self._scanner = Scanner(dialect, tools, self._reader, self._out, begun=begun)
        self._reading = self._scanner.run()
        next(self._reading, None)

    def feed(self, text: str) -> list[Part]:
        look = self._scanner.look
        if look is not None and not look(text):
            return [self._scanner.kind(text)] if text else []
        self._reader.push(text)
        next(self._reading, None)
        return self._out.drain()

    def close(self) -> list[Part]:
        """At the end of the text."""
        self._reader.ended = True
        for _ in self._reading:
            pass
        return self._out.drain()
