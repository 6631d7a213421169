"""References within a JSON schema."""

from collections.abc import Mapping
from typing import Any

_MOST = 32  # references in a chain
_ROOT = "#/$defs/root"


def resolved(part: Any, root: Any) -> Any:
    """`part` of `root`, or the schema to which it refers; empty if that can't be found."""
    for _ in range(_MOST):
        if not isinstance(part, Mapping):
            break
        if not isinstance(reference := part.get("$ref"), str):
            return part
        part = looked_up(reference, root)
    return {}


def self_contained(part: Any, root: Any) -> Any:
    """`part` of `root` as a schema of its own, which includes all that it refers to."""
    new_part = _moved(part)
    return part if new_part == part else {**new_part, "$defs": {"root": _moved(root)}}


def looked_up(reference: str, root: Any) -> Any:
    """The part of a schema that `#/…` names; None: there is none."""
    path = reference.split("/")
    for name in path[1:] if path[0] == "#" else [""]:
        root = root.get(name) if isinstance(root, Mapping) else None
    return root


def _moved(value: Any) -> Any:
    """A copy with its references changed to the root's new place."""
    if isinstance(value, list):
        return [_moved(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _ROOT + inner[1:] if key == "$ref" and isinstance(inner, str) and inner[:1] == "#" else _moved(inner)
        for key, inner in value.items()
    }
