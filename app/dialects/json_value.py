"""Where a value ends that a model writes, in JSON or as a Python literal. It is passed on as it was written."""

import re
from collections.abc import Callable

from app.dialects.reader import Reader, Reading, stops

_JSON = re.compile(r'["{}\[\]]|[^\s\w+\-.,:]').search  # the rest can't be in JSON but in its strings
_PYTHON = re.compile(r"[\"'{}\[\]()]").search
_IN_STRING = {'"': re.compile(r'["\\]').search, "'": re.compile(r"['\\]").search}


class Span:
    """Of a value that begins with a bracket."""

    __slots__ = ("_depth", "_escaped", "_outside", "_quote", "whole")

    def __init__(self, *, python: bool = False) -> None:
        self._outside = _PYTHON if python else _JSON
        self._depth = 0
        self._quote = ""  # of the string that it is in
        self._escaped = False
        self.whole = False  # ended by its own bracket

    @property
    def signs(self) -> str:
        """Only these can end the string that it is in; "": it is in none."""
        return self._quote + "\\" if self._quote and not self._escaped else ""

    def end(self, text: str, at: int) -> int:
        """Behind the value, or at what can't be in it; -1: it goes on behind `text`."""
        if self._escaped and at < len(text):
            at, self._escaped = at + 1, False
        while True:
            found = (_IN_STRING[self._quote] if self._quote else self._outside)(text, at)
            if found is None:
                return -1
            sign, at = found.group(), found.end()
            if self._quote:
                if sign == "\\":
                    at += 1
                    if at > len(text):
                        self._escaped = True
                        return -1
                else:
                    self._quote = ""
            elif sign in _IN_STRING:
                self._quote = sign
            elif sign in "{[(":
                self._depth += 1
            elif sign in "}])":
                self._depth -= 1
                if self._depth == 0:
                    self.whole = True
                    return at
            else:
                return at - 1


def read_span(reader: Reader, each: Callable[[str], object], *, python: bool = False) -> Reading[bool]:
    """Whether the value, whose bracket is next, ended with its own. Raises: Cut."""
    span = Span(python=python)
    while True:
        at, end = reader.at, span.end(reader.text, reader.at)
        reader.at = len(reader.text) if end < 0 else end
        if reader.at > at:
            each(reader.text[at : reader.at])
        if end >= 0:
            return span.whole
        if span.signs:
            reader.pass_on(span.signs, each)
        yield from reader.more()


def read_json(reader: Reader, each: Callable[[str], object]) -> Reading[bool]:
    """Whether the JSON value that is next is whole. Raises: Cut, Unfit."""
    first = yield from reader.skip_space()
    if first in "{[":
        return (yield from read_span(reader, each))
    if first == '"':
        reader.at += 1
        each('"')
        return (yield from _read_string(reader, each))
    text, mark = yield from reader.until(stops(",", "}", "]", "\n", " "))
    reader.unread(mark)
    each(text)
    return True


def _read_string(reader: Reader, each: Callable[[str], object]) -> Reading[bool]:
    escaped = False
    while True:
        text, at = reader.text, reader.at
        if escaped and at < len(text):
            at, escaped = at + 1, False
        while (found := _IN_STRING['"'](text, at)) and found.group() == "\\":
            at = found.end() + 1
        if not found:
            escaped = escaped or at > len(text)
        begun, reader.at = reader.at, found.end() if found else len(text)
        if reader.at > begun:
            each(text[begun : reader.at])
        if found:
            return True
        yield from reader.more()
