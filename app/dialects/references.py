"""What one part of a JSON schema says by referring to others of its parts."""

from collections.abc import Mapping
from typing import Any

_MOST = 32  # references behind each other
_ROOT = "#/$defs/root"


def referred(part: Any, root: Any) -> Any:
    """The schema that `part` of `root` is, perhaps by a reference; an empty one where that can't be told."""
    for _ in range(_MOST):
        if not isinstance(part, Mapping):
            break
        if not isinstance(reference := part.get("$ref"), str):
            return part
        part = found(reference, root)
    return {}


def alone(part: Any, root: Any) -> Any:
    """`part` of `root` as a schema of its own, within which all lies that it refers to."""
    moved = _moved(part)
    return part if moved == part else {**moved, "$defs": {"root": _moved(root)}}


def found(reference: str, root: Any) -> Any:
    """What `#/…` names in a schema; None: it isn't there."""
    path = reference.split("/")
    for name in path[1:] if path[0] == "#" else [""]:
        root = root.get(name) if isinstance(root, Mapping) else None
    return root


def _moved(value: Any) -> Any:
    """With its references to where the root is then."""
    if isinstance(value, list):
        return [_moved(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _ROOT + inner[1:] if key == "$ref" and isinstance(inner, str) and inner[:1] == "#" else _moved(inner)
        for key, inner in value.items()
    }
