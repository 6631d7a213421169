"""Parts that parsers make of what models write, put together as clients do."""

import json
from collections.abc import Iterable
from typing import Any

from app.dialects.dialect import Dialect
from app.dialects.output_parser import OutputParser
from app.dialects.parts import Arguments, CallBegun, Content, Part, Reasoning


def parts_of(dialect: Dialect, tools: dict[str, Any], pieces: Iterable[str], **place: bool) -> list[Part]:
    parser = OutputParser(dialect, tools, **place)
    return [part for piece in pieces for part in parser.feed(piece)] + parser.close()


def texts(parts: list[Part]) -> tuple[str, str]:
    """Reasoning and content."""
    return (
        "".join(p.text for p in parts if isinstance(p, Reasoning)),
        "".join(p.text for p in parts if isinstance(p, Content)),
    )


def calls(parts: list[Part]) -> list[tuple[str, str]]:
    """Name and arguments of each call."""
    return [
        (p.name, "".join(a.text for a in parts if isinstance(a, Arguments) and a.index == p.index))
        for p in parts
        if isinstance(p, CallBegun)
    ]


def arguments(dialect: Dialect, name: str, parameters: dict[str, Any], pieces: Iterable[str]) -> Any:
    """The arguments of the only call, of a tool with these parameters."""
    ((_, text),) = calls(parts_of(dialect, {name: parameters}, pieces))
    return json.loads(text)
