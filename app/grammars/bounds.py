"""Bounds on grammars for which llguidance takes much memory before its own limits refuse them."""

import re
from typing import Any

_MOST_ITEMS = 2**15  # the sum of all 'minItems' and 'maxItems' of a schema: 0.1 s and 50 MB
_COUNTS = ("minItems", "maxItems")
_EMBEDDED = re.compile(r"%json\s*\{")


def check_counts(value: Any) -> None:
    """Checks a schema, or all of a structural tag's. Raises: ValueError."""
    if _items(value) > _MOST_ITEMS:
        raise ValueError(f"all 'minItems' and 'maxItems' together are over {_MOST_ITEMS}")


def check_embedded(grammar: str) -> None:
    """Raises: ValueError for schemas within a grammar, which only llguidance knows."""
    if _EMBEDDED.search(grammar):
        raise ValueError("schemas in a grammar ('%json') are not supported")


def _items(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_items, value))
    if not isinstance(value, dict):
        return 0
    own = sum(max(0, int(value[key])) for key in _COUNTS if isinstance(value.get(key), int | float))
    return own + sum(map(_items, value.values()))
