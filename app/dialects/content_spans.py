"""A parser that also tells where in a text its content stands, and takes longer."""

from app.dialects.dialect import Dialect, Tools
from app.dialects.output_parser import OutputParser
from app.dialects.parts import SPACE, Collector, Content, Kind
from app.dialects.reader import MarkerSet, Reader

Span = tuple[int, int]  # of characters, from the text's beginning: from, to


class SpanParser(OutputParser):
    def __init__(self, dialect: Dialect, tools: Tools, *, begun: bool = False, over: bool = False) -> None:
        reader = self._placed = _PlacedReader()
        out = self._spans = _SpanCollector(dialect.trimmed, reader)
        super().__init__(dialect, tools, begun=begun, over=over, reader=reader, out=out)

    @property
    def settled(self) -> int:
        """Number of characters that are known to be content, or not to be: all spans up to there were told."""
        spans = self._spans.held
        return min(spans[0][0], self._placed.settled) if spans else self._placed.settled

    @property
    def final(self) -> int:
        """The place before which no text is content but what is in the spans so far, whatever follows."""
        spans = self._spans.left_spans
        return min(spans[0][0], self.settled) if spans and self._spans.is_left() else self.settled

    def spans(self) -> list[Span]:
        """Spans of the content that has come since the last call, in order."""
        spans, self._spans.spans = self._spans.spans, []
        return spans


class _PlacedReader(Reader):
    """Knows where the text stood that it has passed on last."""

    __slots__ = ("_kept_begin", "base", "begin")

    def __init__(self) -> None:
        super().__init__()
        self.base = 0  # of `text`, from the beginning
        self.begin = 0  # of the text that was passed on last
        self._kept_begin = 0

    @property
    def read(self) -> int:
        return self.base + self.at

    @property
    def settled(self) -> int:
        return self._kept_begin if self._kept is not None else self.read

    def push(self, text: str) -> None:
        self.base += self.at
        super().push(text)

    def pass_on(self, special_chars: str, each: object) -> None:
        """Does nothing: there is no short cut."""

    def keep(self, already: str = "") -> None:
        super().keep(already)
        self._kept_begin = self.read - len(already)

    def kept(self) -> str:
        self.begin = self._kept_begin
        return super().kept()

    def unread(self, marker: str) -> None:
        at = self.read - len(marker)
        super().unread(marker)
        self.base = at - self.at

    def take(self, marks: MarkerSet) -> tuple[str, str | None]:
        self.begin = self.read
        return super().take(marks)


class _SpanCollector(Collector):
    __slots__ = ("_reader", "held", "left_spans", "spans")

    def __init__(self, trims: frozenset[Kind], reader: _PlacedReader) -> None:
        super().__init__(trims, reader.release)
        self._reader = reader
        self.spans: list[Span] = []  # of content
        self.held: list[Span] = []  # of whitespace that may come before a marker
        self.left_spans: list[Span] = []

    def text(self, kind: Kind, text: str) -> None:
        if kind in self._trimmed:
            self._place(kind, text, self._reader.begin)
        elif kind is Content:
            self.spans.append(self._span(text))
        super().text(kind, text)

    def _place(self, kind: Kind, text: str, begin: int) -> None:
        """Notes where the text stands that `_trim` leaves of this."""
        first = len(text) - len(text.lstrip(SPACE)) if self._fresh else 0
        last = max(first, len(text.rstrip(SPACE)))
        if last > first:
            if kind is Content:
                self.spans += [*self.held, (begin + first, begin + last)]
            self.held.clear()
        if last < len(text):
            self.held.append((begin + last, begin + len(text)))

    def switch(self, into: Kind) -> None:
        self.held.clear()
        super().switch(into)

    def after_call(self) -> None:
        self.held.clear()
        super().after_call()

    def leave(self, text: str) -> None:
        self.left_spans.append(self._span(text))
        super().leave(text)

    def close(self, kind: Kind) -> None:
        parts = len(self._parts)
        spans = self.left_spans if self.is_left() else self.held
        super().close(kind)
        if len(self._parts) > parts and isinstance(self._parts[-1], Content):
            self.spans += spans
        self.held.clear()

    def _span(self, text: str) -> Span:
        return self._reader.begin, self._reader.begin + len(text)
