"""Finding the end of a value that a model writes in JSON or as a Python literal. Its text is passed on unchanged."""

import json
import re
from collections.abc import Callable

from app.dialects.reader import Reader, Reading, marker_set

_LONGEST = 2**20  # characters of arguments that are written as a text

_JSON = re.compile(r'["{}\[\]]|[^\s\w+\-.,:]').search  # structure, and characters that JSON has only in strings
_PYTHON = re.compile(r"[\"'{}\[\]()]").search
_IN_STRING = {'"': re.compile(r'["\\]').search, "'": re.compile(r"['\\]").search}


class Span:
    """Finds the end of a value that begins with a bracket."""

    __slots__ = ("_depth", "_escaped", "_outside", "_quote", "whole")

    def __init__(self, *, python: bool = False) -> None:
        self._outside = _PYTHON if python else _JSON
        self._depth = 0
        self._quote = ""  # of the present string; "": in none
        self._escaped = False
        self.whole = False  # ended by its own bracket

    @property
    def special_chars(self) -> str:
        """The only characters that matter within the present string; "": in none."""
        return self._quote + "\\" if self._quote and not self._escaped else ""

    def end(self, text: str, at: int) -> int:
        """The index after the value, or of a character that can't be in it; -1: the value continues after `text`."""
        if self._escaped and at < len(text):
            at, self._escaped = at + 1, False
        while True:
            match = (_IN_STRING[self._quote] if self._quote else self._outside)(text, at)
            if match is None:
                return -1
            char, at = match.group(), match.end()
            if self._quote:
                if char == "\\":
                    at += 1
                    if at > len(text):
                        self._escaped = True
                        return -1
                else:
                    self._quote = ""
            elif char in _IN_STRING:
                self._quote = char
            elif char in "{[(":
                self._depth += 1
            elif char in "}])":
                self._depth -= 1
                if self._depth == 0:
                    self.whole = True
                    return at
            else:
                return at - 1


def read_span(reader: Reader, each: Callable[[str], object], *, python: bool = False) -> Reading[bool]:
    """Passes the next value, which begins with a bracket, to `each`. False: it is malformed. Raises: EndOfText."""
    span = Span(python=python)
    while True:
        at, end = reader.at, span.end(reader.text, reader.at)
        reader.at = len(reader.text) if end < 0 else end
        if reader.at > at:
            each(reader.text[at : reader.at])
        if end >= 0:
            return span.whole
        if span.special_chars:
            reader.pass_on(span.special_chars, each)
        yield from reader.more()


def read_json(reader: Reader, each: Callable[[str], object]) -> Reading[bool]:
    """Passes the next JSON value to `each`. False: it is malformed. Raises: EndOfText, Mismatch."""
    first = yield from reader.skip_space()
    if first in "{[":
        return (yield from read_span(reader, each))
    if first == '"':
        reader.at += 1
        each('"')
        return (yield from _read_string(reader, each))
    text, mark = yield from reader.until(marker_set(",", "}", "]", "\n", " "))
    reader.unread(mark)
    each(text)
    return True


def read_arguments(reader: Reader, each: Callable[[str], object]) -> Reading[bool]:
    """Passes a call's arguments to `each`; nothing for none. Some models write the object's JSON into a JSON text.

    False: they are malformed. Raises: EndOfText, Mismatch.
    """
    first = yield from reader.skip_space()
    if first == '"':
        text = yield from reader.json_string(_LONGEST)
        each(_object_in(text))
        return True
    return (yield from read_json(reader, _ignore if first == "n" else each))


def _object_in(text: str) -> str:
    """The arguments that a text has: an object, or none; else the text itself, as JSON."""
    if not text.strip():
        return ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if value is None:
        return ""
    return text.strip() if isinstance(value, dict) else json.dumps(text, ensure_ascii=False)


def _ignore(_: str) -> None:
    pass


def _read_string(reader: Reader, each: Callable[[str], object]) -> Reading[bool]:
    is_escaped = False
    while True:
        text, at = reader.text, reader.at
        if is_escaped and at < len(text):
            at, is_escaped = at + 1, False
        while (match := _IN_STRING['"'](text, at)) and match.group() == "\\":
            at = match.end() + 1
        if not match:
            is_escaped = is_escaped or at > len(text)
        start, reader.at = reader.at, match.end() if match else len(text)
        if reader.at > start:
            each(text[start : reader.at])
        if match:
            return True
        yield from reader.more()
