"""Columns of tables, and the kinds of their values."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["text", "integer", "number", "boolean", "numbers", "json"]
Row = Mapping[str, Any]

_LEAST, _MOST = -(2**63), 2**63 - 1  # of an integer in a table


class Column(NamedTuple):
    name: str
    kind: Kind


def kind_of(value: Any) -> Kind | None:
    """None: any kind has it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if _LEAST <= value <= _MOST else "json"
    return "number" if isinstance(value, float) else "text" if isinstance(value, str) else "json"


def both(one: Kind | None, other: Kind | None) -> Kind | None:
    """The kind that has the values of both."""
    if one is None or other is None or one == other:
        return other if one is None else one
    return "number" if {one, other} == {"integer", "number"} else "json"


def fits(kind: Kind, value: Any) -> bool:
    return kind == "json" or both(kind, kind_of(value)) == kind
