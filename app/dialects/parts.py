"""The parts of generated text, and the collector that gathers them."""

from collections.abc import Callable
from itertools import groupby

from msgspec import Struct

SPACE = " \t\r\n"


class Reasoning(Struct, frozen=True, gc=False):
    text: str


class Content(Struct, frozen=True, gc=False):
    text: str


class CallBegun(Struct, frozen=True, gc=False):
    """Comes once per call, just before its first arguments."""

    index: int
    name: str


class Arguments(Struct, frozen=True, gc=False):
    """A piece of the JSON text of a call's arguments; all pieces of a call make the whole, at least `{}`."""

    index: int
    text: str


Part = Reasoning | Content | CallBegun | Arguments
Kind = type[Reasoning] | type[Content]


class Collector:
    """Parts in their order, without the whitespace around markers where a dialect says so."""

    def __init__(self, trims: frozenset[Kind], at_call: Callable[[], object]) -> None:
        """`at_call` is called when a call begins, which can't be taken back."""
        self._at_call = at_call
        self._trimmed = trims
        self._parts: list[Part] = []
        self._space: list[str] = []  # whitespace that may come before a marker
        self._fresh = False  # right after a marker, whose whitespace may follow
        self._last: Kind | type[CallBegun] | None = None  # what came last, but for whitespace that is held back
        self._shown = False  # there was text before that
        self._left: list[str] = []  # text of which nothing was made
        self.calls = 0
        self.unfinished: set[int] = set()  # calls whose arguments aren't whole

    def text(self, kind: Kind, text: str) -> None:
        """Adds text, which is not empty."""
        if kind in self._trimmed and (self._space or self._fresh or text[-1] in SPACE):
            self._trim(kind, text)
        else:
            self._last = kind
            self._parts.append(kind(text))

    def _trim(self, kind: Kind, text: str) -> None:
        """Whitespace at the end is held back: it may come before a marker."""
        if self._fresh:
            text = text.lstrip(SPACE)
        body = text.rstrip(SPACE)
        if body:
            self._parts.append(kind("".join(self._space) + body))
            self._space.clear()
            self._fresh, self._last = False, kind
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def switch(self, into: Kind) -> None:
        """A marker ended a text of one kind, and one of the kind `into` begins."""
        self._note()
        self._space.clear()
        self._fresh = into in self._trimmed

    def call(self, name: str) -> "Call":
        """A new call. For clients it begins when its first arguments are added."""
        return Call(self, name)

    def begin(self, name: str) -> int:
        self._at_call()
        self.after_call()
        index, self.calls = self.calls, self.calls + 1
        self.unfinished.add(index)
        self._parts.append(CallBegun(index, _encodable(name)))
        return index

    def arguments(self, index: int, text: str) -> None:
        self._parts.append(Arguments(index, _encodable(text)))

    def after_call(self) -> None:
        """A call was read, or text that is no complete call and is dropped."""
        self._note()
        self._space.clear()
        self._fresh, self._last = False, CallBegun

    def leave(self, text: str) -> None:
        """Text of which nothing is made: it is the answer if there is nothing else in it."""
        self._left.append(text)

    def is_left(self) -> bool:
        """Whether there is nothing else so far."""
        self._note()
        return bool(self._left) and not self._shown and not self.calls

    def _note(self) -> None:
        self._shown = self._shown or self._last in (Content, Reasoning)

    def drain(self) -> list[Part]:
        """Takes out the parts; neighbours of one kind as one."""
        parts = self._parts
        if not parts:
            return []
        self._parts = []
        if len(parts) == 1:
            return parts
        merged_parts: list[Part] = []
        for _, group in groupby(parts, _run):
            merged_parts += _joined(list(group))
        return merged_parts

    def close(self, kind: Kind) -> None:
        """The text ended within a text of `kind`."""
        if self.is_left():
            self._parts.append(Content("".join(self._left)))
        elif self._space and self._last is not CallBegun:
            self._parts.append(kind("".join(self._space)))
        self._space.clear()


class Call:
    """A call that is being read."""

    __slots__ = ("_index", "_name", "_out")

    def __init__(self, out: Collector, name: str) -> None:
        self._out, self._name = out, name
        self._index: int | None = None

    def add(self, text: str) -> None:
        if not text:
            return
        if self._index is None:
            self._index = self._out.begin(self._name)
        self._out.arguments(self._index, text)

    def finish(self) -> None:
        """Its arguments are whole."""
        if self._index is None:
            self.add("{}")
        if self._index is not None:
            self._out.unfinished.discard(self._index)


def _encodable(text: str) -> str:
    """The text without lone surrogates, which JSON's escapes can name and UTF-8 doesn't have."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _run(part: Part) -> tuple[type, int]:
    return type(part), part.index if isinstance(part, CallBegun | Arguments) else 0


def _joined(run: list[Part]) -> list[Part]:
    """A run of one kind as one part; a call's beginning stays as it is."""
    first = run[0]
    if len(run) == 1 or isinstance(first, CallBegun):
        return run
    text = "".join(p.text for p in run if not isinstance(p, CallBegun))
    return [Arguments(first.index, text) if isinstance(first, Arguments) else type(first)(text)]
