"""A text that stands between markers and is not escaped, held to what its schema says of it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from app.dialects.call_grammar import TEXT, Format, const, sequence, tag

HELD_TEXT = {"minLength", "maxLength", "pattern", "format"}
_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9A-Fa-f]"
_NULL = "null"
_NO_BOUND = 2**30  # characters or items, which no answer has, and beyond which xgrammar doesn't count
# What of a format is written under a grammar: all of it is in the format, which may have more.
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P([0-9]{1,9}W|[0-9]{1,9}D|([0-9]{1,9}D)?T([0-9]{1,9}H)?[0-9]{1,9}M|T[0-9]{1,9}[HS])",
    "email": rf"[A-Za-z0-9_+\-]{{1,32}}(\.[A-Za-z0-9_+\-]{{1,31}})?@{_LABEL}(\.{_LABEL})+",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": f"({_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}|::1|::",
    "uri": r"[A-Za-z][A-Za-z0-9+.\-]*:[A-Za-z0-9\-._~:/?#@!$&'()*+,;=%]+",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
}


def text_until(end: str, part: Mapping[str, Any], *, nullable: bool = False) -> tuple[Format, str]:
    """A text and the marker behind it, and the keyword that is not seen to, ""; `part`: the schema of a string.

    `nullable`: or `null`. Raises: ValueError for lengths that no text has.
    """
    least, most = counts(part, "minLength", "maxLength")
    pattern = part.get("pattern", _FORMATS.get(part.get("format", "")))
    if pattern is not None:
        beside = {"minLength", "maxLength"} | ({"format"} if "pattern" in part else set())
        text_format = tag("", _regex(pattern), end)
        return _or_null(text_format, end) if nullable else text_format, min(beside & part.keys(), default="")
    # No marker begins in the first characters, since it might go on behind them.
    first = [_regex(f"[^{_class(end)}]{{{least}}}")] if least else []
    bound = {} if most is None else {"max_chars": most - least}
    rest = const(end) if most == least else tag("", TEXT | bound, end)
    text_format = sequence(*first, rest) if first else rest
    fits = least <= len(_NULL) and (most is None or most >= len(_NULL))  # as a text
    return _or_null(text_format, end) if nullable and not fits else text_format, "format" if "format" in part else ""


def counts(part: Mapping[str, Any], lower: str, upper: str) -> tuple[int, int | None]:
    """Two keywords of a schema. Raises: ValueError where nothing is within them."""
    least, most = part.get(lower, 0), part.get(upper)
    if most is not None and most < least:
        raise ValueError(f"{upper} is less than {lower}")
    return least, None if most is None or most >= _NO_BOUND else most


def _or_null(format_: Format, end: str) -> Format:
    return {"type": "or", "elements": [const(_NULL + end), format_]}


def one_of(texts: Iterable[str]) -> Format:
    """Raises: ValueError where there is none."""
    options = [const(text) for text in texts]
    if not options:
        raise ValueError("an enum without values")
    return options[0] if len(options) == 1 else {"type": "or", "elements": options}


def _class(end: str) -> str:
    """The characters that a marker, and the line before it, begin with."""
    return r"\n" + re.escape(end.strip()[0])


def _regex(pattern: str) -> Format:
    return {"type": "regex", "pattern": pattern}
