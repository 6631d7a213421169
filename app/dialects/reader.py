"""Text that comes in pieces, read as if it were complete.

Methods that may need more text are generators, which yield until it comes. Only what may be the beginning of a marker
is searched again then, so that reading takes time in proportion to the text.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]

HEAD = 512  # characters: longer than any name, and bounded, so that a lone marker can't hold back an answer
_GAP = 32  # characters of whitespace that may be between a marker and the text that has to follow it
_FILLED = re.compile(r"[^ \t\r\n]").search
_STRING_ENDS = re.compile(r'["\\]').search


class EndOfText(Exception):
    """The text ended where more was needed."""


class Mismatch(Exception):
    """The text after a marker is not what the marker begins."""


class MarkerSet:
    """A set of markers to search for, of which clients choose some. Raises: ValueError when one is in another, except
    at its end.
    """

    def __init__(self, markers: tuple[str, ...]) -> None:
        self._sorted = sorted(markers)
        self._longest = max(map(len, markers), default=1)
        self.firsts = "".join(sorted({m[0] for m in markers}))
        self._first = re.compile(f"[{re.escape(self.firsts)}]" if markers else "(?!)").search
        if any(self.find(marker[:-1], 0) for marker in markers):
            raise ValueError(f"one is in another: {markers}")

    def find(self, text: str, at: int) -> tuple[int, str] | None:
        """The first marker from `at` on, and its index. Takes no longer for many markers than for a few."""
        while match := self._first(text, at):
            at = match.start()
            # Of those that are not behind it in the alphabet, the last: no other one can be its beginning.
            place = bisect_right(self._sorted, text[at : at + self._longest]) - 1
            if place >= 0 and text.startswith(self._sorted[place], at):
                return at, self._sorted[place]
            at += 1
        return None

    def open_from(self, text: str, at: int) -> int:
        """The index from which the rest of `text` may be the beginning of a marker; its length if none is."""
        start = max(at, len(text) - self._longest + 1)
        while match := self._first(text, start):
            start = match.start()
            place = bisect_left(self._sorted, text[start:])
            if place < len(self._sorted) and self._sorted[place].startswith(text[start:]):
                return start
            start += 1
        return len(text)


@lru_cache(maxsize=128)
def marker_set(*markers: str) -> MarkerSet:
    return MarkerSet(tuple(dict.fromkeys(m for m in markers if m)))


class Reader:
    """Reads one choice's text."""

    __slots__ = ("_kept", "_kept_from", "at", "each", "ended", "special_chars", "text")

    def __init__(self) -> None:
        self.text, self.at = "", 0  # text before this index is read
        self.ended = False
        # A short cut; None: there is none now. All text is read, and more text without any of these characters may be
        # passed directly to `each`.
        self.special_chars: str | None = None
        self.each: Callable[[str], object] = str
        self._kept: list[str] | None = None
        self._kept_from = 0

    def push(self, text: str) -> None:
        self.special_chars = None
        if self._kept is not None:
            self._kept.append(self.text[self._kept_from : self.at])
            self._kept_from = 0
        self.text, self.at = self.text[self.at :] + text, 0

    def pass_on(self, special_chars: str, each: Callable[[str], object]) -> None:
        """Opens the short cut of `special_chars` until the next push."""
        if self.at == len(self.text) and self._kept is None:
            self.special_chars, self.each = special_chars, each

    def keep(self, already: str = "") -> None:
        """`kept` has the text that is read from here on, after `already`."""
        self._kept, self._kept_from = [already], self.at

    def kept(self) -> str:
        assert self._kept is not None
        return "".join(self._kept) + self.text[self._kept_from : self.at]

    def release(self) -> None:
        self._kept = None

    def unread(self, marker: str) -> None:
        """Makes `marker`, which was read last, be read again."""
        if self.at >= len(marker):
            self.at -= len(marker)
        else:
            self.text, self.at = marker + self.text[self.at :], 0

    def more(self) -> Reading[None]:
        """Waits for more text. Raises: EndOfText."""
        if self.ended:
            raise EndOfText
        yield

    def take(self, marks: MarkerSet) -> tuple[str, str | None]:
        """The text up to a marker, and the marker. None: there is none in the text, nor the beginning of one."""
        text, at = self.text, self.at
        if hit := marks.find(text, at):
            end, mark = hit
            self.at = end + len(mark)
            return text[at:end], mark
        self.at = len(text) if self.ended else marks.open_from(text, at)
        return text[at : self.at], None

    def pieces(self, marks: MarkerSet, each: Callable[[str], object]) -> Reading[str]:
        """Passes the text up to a marker to `each`, in pieces; returns the marker. Raises: EndOfText."""
        while True:
            text, mark = self.take(marks)
            if text:
                each(text)
            if mark is not None:
                return mark
            self.pass_on(marks.firsts, each)
            yield from self.more()

    def until(self, marks: MarkerSet, limit: int = HEAD) -> Reading[tuple[str, str]]:
        """The text up to a marker, and the marker.

        Raises: EndOfText; Mismatch above `limit` characters, which it reads.
        """
        pieces: list[str] = []
        while True:
            begin = self.at
            text, mark = self.take(marks)
            if len(text) > limit:
                self.at = begin + limit  # however much of it has come
                raise Mismatch
            pieces.append(text)
            limit -= len(text)
            if mark is not None:
                return "".join(pieces), mark
            yield from self.more()

    def skip_space(self) -> Reading[str]:
        """Skips whitespace. Returns the next character, which is not read yet. Raises: EndOfText."""
        while True:
            if match := _FILLED(self.text, self.at):
                self.at = match.start()
                return match.group()
            self.at = len(self.text)
            yield from self.more()

    def literal(self, *options: str) -> Reading[str]:
        """Reads the option that comes next; "" for none. Raises: EndOfText."""
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
        """Whether one of `options`, or the end of the text, comes next after whitespace. Reads nothing."""
        while True:
            rest = self.text[self.at : self.at + HEAD]
            next_text = rest.lstrip()
            if next_text.startswith(options):
                return True
            if len(rest) - len(next_text) > _GAP or not any(option.startswith(next_text) for option in options):
                return False
            if self.ended:
                return not next_text
            yield

    def json_string(self, limit: int = HEAD) -> Reading[str]:
        """Reads a JSON string, whose quotation mark comes next.

        Raises: EndOfText; Mismatch if it is invalid, or above `limit` characters, which it reads.
        """
        pieces = ['"']
        self.at += 1
        is_closed = False
        while not is_closed:
            end = _STRING_ENDS(self.text, self.at)
            behind = end.end() + (end.group() == "\\") if end else len(self.text)
            if behind <= len(self.text):
                if behind - self.at > limit:
                    self.at += limit
                    raise Mismatch
                pieces.append(self.text[self.at : behind])
                self.at = behind
                is_closed = end is not None and end.group() == '"'
                limit -= len(pieces[-1])
            if not is_closed and (end is None or behind > len(self.text)):
                yield from self.more()
        try:
            value = json.loads("".join(pieces), strict=False)
        except ValueError:
            raise Mismatch from None
        assert isinstance(value, str)
        return value
