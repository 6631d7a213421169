"""Text that comes in pieces, read as if it were there at once.

What reads more than a piece is a generator that yields where it needs more text. Nothing is looked at again when more
comes but what may be the beginning of a marker, so that reading takes time in proportion to the text.
"""

import json
import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

HEAD = 512  # characters: longer than any name, so that no marker by itself withholds an answer
_GAP = 32  # characters of whitespace that may be between a marker and what has to follow it
_FILLED = re.compile(r"[^ \t\r\n]").search
_STRING_ENDS = re.compile(r'["\\]').search


class Cut(Exception):
    """The text ended where more was needed."""


class Unfit(Exception):
    """What follows a marker is not what that marker begins."""


class Stops:
    """Markers that are looked for together. Raises: ValueError when one is in another, but at its end."""

    def __init__(self, markers: tuple[str, ...]) -> None:
        if any(a != b and a in b[:-1] for a in markers for b in markers):
            raise ValueError(f"one is in another: {markers}")
        self.search = re.compile("|".join(map(re.escape, markers)) or "(?!)").search
        self.firsts = "".join(sorted({m[0] for m in markers}))
        self._first = re.compile(f"[{re.escape(self.firsts)}]" if markers else "(?!)").search
        self._reach = max(map(len, markers), default=1) - 1
        self._beginnings = frozenset(m[:n] for m in markers for n in range(1, len(m)))

    def open_from(self, text: str, at: int) -> int:
        """Where the end of `text` begins that may be the beginning of a marker."""
        start = max(at, len(text) - self._reach)
        while found := self._first(text, start):
            start = found.start()
            if text[start:] in self._beginnings:
                return start
            start += 1
        return len(text)


@lru_cache(maxsize=512)
def stops(*markers: str) -> Stops:
    return Stops(tuple(dict.fromkeys(m for m in markers if m)))


class Reader:
    """Of one choice's text."""

    __slots__ = ("_kept", "_kept_from", "at", "each", "ended", "signs", "text")

    def __init__(self) -> None:
        self.text, self.at = "", 0  # what is not read yet begins there
        self.ended = False
        # Where all is read, and goes to `each`: text with none of `signs` may go there too, and nothing else happens.
        self.signs: str | None = None
        self.each: Callable[[str], object] = str
        self._kept: list[str] | None = None
        self._kept_from = 0

    def push(self, text: str) -> None:
        self.signs = None
        if self._kept is not None:
            self._kept.append(self.text[self._kept_from : self.at])
            self._kept_from = 0
        self.text, self.at = self.text[self.at :] + text, 0

    def pass_on(self, signs: str, each: Callable[[str], object]) -> None:
        """Until the next push: see `signs`."""
        if self.at == len(self.text) and self._kept is None:
            self.signs, self.each = signs, each

    def keep(self, already: str = "") -> None:
        """From here on what is read can be had again, as if `already` had just been read."""
        self._kept, self._kept_from = [already], self.at

    def kept(self) -> str:
        assert self._kept is not None
        return "".join(self._kept) + self.text[self._kept_from : self.at]

    def release(self) -> None:
        self._kept = None

    def unread(self, marker: str) -> None:
        """`marker`, which was read last, is to be read again."""
        if self.at >= len(marker):
            self.at -= len(marker)
        else:
            self.text, self.at = marker + self.text[self.at :], 0

    def more(self) -> Reading[None]:
        """Raises: Cut."""
        if self.ended:
            raise Cut
        yield

    def take(self, marks: Stops) -> tuple[str, str | None]:
        """The text up to a marker, and the marker; None: there is none yet, and what was read is none's beginning."""
        text, at = self.text, self.at
        if found := marks.search(text, at):
            self.at = found.end()
            return text[at : found.start()], found.group()
        self.at = len(text) if self.ended else marks.open_from(text, at)
        return text[at : self.at], None

    def pieces(self, marks: Stops, each: Callable[[str], object]) -> Reading[str]:
        """All pieces of text up to a marker; returns that. Raises: Cut."""
        while True:
            text, mark = self.take(marks)
            if text:
                each(text)
            if mark is not None:
                return mark
            self.pass_on(marks.firsts, each)
            yield from self.more()

    def until(self, marks: Stops, limit: int = HEAD) -> Reading[tuple[str, str]]:
        """The text up to a marker, and the marker. Raises: Cut, Unfit when it is longer than that."""
        found: list[str] = []
        room = limit
        while True:
            text, mark = self.take(marks)
            found.append(text)
            room -= len(text)
            if room < 0:
                raise Unfit
            if mark is not None:
                return "".join(found), mark
            yield from self.more()

    def skip_space(self) -> Reading[str]:
        """The character behind whitespace, which is not read yet. Raises: Cut."""
        while True:
            if found := _FILLED(self.text, self.at):
                self.at = found.start()
                return found.group()
            self.at = len(self.text)
            yield from self.more()

    def literal(self, *options: str) -> Reading[str]:
        """Reads the one that comes next; "" for none. Raises: Cut."""
        while True:
            for option in options:
                if self.text.startswith(option, self.at):
                    self.at += len(option)
                    return option
            rest = self.text[self.at : self.at + HEAD]
            if not any(option.startswith(rest) for option in options):
                return ""
            yield from self.more()

    def follows(self, options: tuple[str, ...]) -> Reading[bool]:
        """Whether behind whitespace one of these is next, or nothing: it is not read."""
        while True:
            rest = self.text[self.at : self.at + HEAD]
            filled = rest.lstrip()
            if filled.startswith(options):
                return True
            if len(rest) - len(filled) > _GAP or not any(option.startswith(filled) for option in options):
                return False
            if self.ended:
                return not filled
            yield

    def json_string(self, limit: int = HEAD) -> Reading[str]:
        """Whose quotation mark is next. Raises: Cut, Unfit."""
        found = ['"']
        self.at += 1
        closed = False
        while not closed:
            end = _STRING_ENDS(self.text, self.at)
            behind = end.end() + (end.group() == "\\") if end else len(self.text)
            if behind <= len(self.text):
                found.append(self.text[self.at : behind])
                self.at = behind
                closed = end is not None and end.group() == '"'
                limit -= len(found[-1])
            if limit < 0:
                raise Unfit
            if not closed and (end is None or behind > len(self.text)):
                yield from self.more()
        try:
            value = json.loads("".join(found), strict=False)
        except ValueError:
            raise Unfit from None
        assert isinstance(value, str)
        return value
