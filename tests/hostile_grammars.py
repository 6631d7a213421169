"""Grammars of which compilers die, or that lead nowhere; each is a request's, and shorter than 2**16 bytes."""

from collections.abc import Callable
from typing import Any


def rules(count: int) -> str:
    """Lark, in which each rule is the next one. llguidance dies of 4,000."""
    return "\n".join(["start: a0", *(f"a{i}: a{i + 1}" for i in range(count)), f'a{count}: "x"'])


def chain(count: int, link: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """A schema of so many references. `link`: the schema in which one stands."""
    schemas = {f"d{i}": link(f"#/$defs/d{i + 1}") for i in range(count)}
    return {"$defs": schemas | {f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def any_of(to: str) -> dict[str, Any]:
    return {"anyOf": [{"$ref": to}]}


def required(to: str) -> dict[str, Any]:
    return {"properties": {"a": {"$ref": to}}, "required": ["a"]}


def items(to: str) -> dict[str, Any]:
    return {"items": {"$ref": to}}


# llguidance dies of each.
DEEP = {"anyOf": chain(1140, any_of), "required": chain(950, required), "items": chain(1760, items)}
CIRCLES: dict[str, dict[str, Any]] = {
    "itself": {"$ref": "#"},
    "each other": {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
    "a choice of itself": {"anyOf": [{"$ref": "#"}]},
    "beside others": {"properties": {"a": {"allOf": [{"$ref": "#/properties/a"}]}}},
}
# That a value may have itself within is what references are for.
RECURSIVE: dict[str, dict[str, Any]] = {
    "a tree": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["name"],
        "additionalProperties": False,
    },
    "each other": {
        "$ref": "#/$defs/A",
        "$defs": {
            "A": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/B"}]},
            "B": {"type": "object", "properties": {"next": {"$ref": "#/$defs/A"}}, "additionalProperties": False},
        },
    },
    "a property's name": {
        "properties": {"$ref": {"type": "string"}, "anyOf": {"enum": [{"$ref": "#"}]}},
        "additionalProperties": False,
    },
}
