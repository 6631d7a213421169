"""Strings of JSON schemas, as xgrammar has to be told of them.

It writes a bounded string without escapes, but with raw TABs; and takes the literal characters of a pattern as they
are, so a quote, a backslash or a TAB in one would break the JSON. Pure, and without xgrammar.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

_SHORT = {'"': '"', "\\": r"\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_CONTROLS = [*map(chr, range(0x20)), "\x7f"]
_SPECIAL = frozenset([*_CONTROLS, '"', "\\"])  # need an escape in JSON; U+007F as llguidance has it
_OTHERS = [chr(code) for code in range(0x20, 0x3000) if chr(code) not in _SPECIAL]
# A bounded string's characters in xgrammar's EBNF, as it makes them of a schema, and as they have to be.
_BOUNDED = re.compile(r'^(\w+_characters ::= )\(\(\[\^\\"\\\\\\r\\n\]\)\)$', re.MULTILINE)
_CHARACTERS = r'(([^\0-\x1f\"\\\x7f]) | ("\\" [\"\\bfnrt]) | ("\\u00" [0-1] [0-9a-fA-F]) | ("\\u007" [fF]))'
_ATOM = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]+\}|[pP](?:\{[^}]*\}|.)|c[A-Za-z]|.)"
    r"|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|[^\\\[]",
    re.DOTALL,
)
_SYNTAX = frozenset("()|*+?{}^$")
_GROUP = re.compile(r"\(\?(?:P?<\w+>|[a-z-]*:)")
_COUNT = re.compile(r"\{\d*,?\d*\}")
_LAST = 0xFFFF  # of the characters that are looked at one by one


def with_escapes(ebnf: str) -> str:
    """The EBNF that xgrammar makes of a schema, in which bounded strings have escapes, each counted as a character."""
    return _BOUNDED.sub(lambda match: match[1] + _CHARACTERS, ebnf)


def has_bounds(schema: Any) -> bool:
    """Whether there are bounded strings in it."""
    if isinstance(schema, list):
        return any(map(has_bounds, schema))
    if not isinstance(schema, dict):
        return False
    return bool({"minLength", "maxLength"} & schema.keys()) or any(map(has_bounds, schema.values()))


def with_patterns(schema: Any) -> Any:
    """The schema with patterns of what a string's JSON is."""
    if isinstance(schema, list):
        return [with_patterns(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: inner if key in ("const", "enum") else with_patterns(inner) for key, inner in schema.items()}
    if isinstance(pattern := schema.get("pattern"), str):
        result["pattern"] = of_json(pattern)
    if isinstance(keys := schema.get("patternProperties"), dict):
        result["patternProperties"] = {of_json(key): with_patterns(inner) for key, inner in keys.items()}
    return result


@lru_cache
def of_json(pattern: str) -> str:
    """A pattern of a string's characters, as one of those of its JSON.

    Patterns without characters that need an escape stay as they are: xgrammar itself leaves such out of classes.
    """
    parts = list(_parts(pattern))
    if not any(_stands_for_specials(part) for part in parts):
        return pattern
    return "".join(part if part[0] in _SYNTAX else _escaped(part) for part in parts)


def _parts(pattern: str) -> Iterator[str]:
    """Syntax, and what matches one character each."""
    at = 0
    while at < len(pattern):
        match = _GROUP.match(pattern, at) or _COUNT.match(pattern, at) or _ATOM.match(pattern, at)
        if match is None:
            return
        yield match[0]
        at = match.end()


def _stands_for_specials(part: str) -> bool:
    """Whether it matches nothing but characters that need an escape."""
    if part[0] in _SYNTAX or (matches := _matcher(part)) is None:
        return False
    return any(map(matches, _SPECIAL)) and not any(map(matches, _OTHERS))


@lru_cache(1024)
def _escaped(atom: str) -> str:
    matches = _matcher(atom)
    if matches is None:  # such as \p{L}, which xgrammar does not take either
        return atom
    escapes = [_escape(char) for char in sorted(_SPECIAL) if matches(char)]
    if not escapes:
        return atom
    plain = "".join(_ranges(matches))
    return f"(?:{'|'.join([f'[{plain}]'] * bool(plain) + escapes)})"


def _matcher(atom: str) -> Callable[[str], object] | None:
    try:
        return re.compile(atom).fullmatch
    except re.error:
        return None


def _escape(char: str) -> str:
    short = _SHORT.get(char)
    return rf"\\u00{ord(char):02x}" if short is None else rf"\\{short}"


def _ranges(matches: Callable[[str], object]) -> Iterator[str]:
    """Ranges of a class: the characters that need no escape. All over U+FFFF, if one of them is."""
    first = None
    for code in range(0x20, _LAST + 2):
        is_in = code <= _LAST and not 0xD800 <= code < 0xE000 and chr(code) not in _SPECIAL and matches(chr(code))
        if is_in and first is None:
            first = code
        elif not is_in and first is not None:
            yield f"{_in_class(first)}-{_in_class(code - 1)}"
            first = None
    if matches("\U0001f600"):
        yield "\U00010000-\U0010ffff"


def _in_class(code: int) -> str:
    return f"\\{chr(code)}" if chr(code) in "[]^-" else chr(code)
