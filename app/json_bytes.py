"""JSON with integers of any length: orjson writes none over 64 bits, and reads them as fractions."""

import re
from typing import Any

import orjson
from pydantic_core import from_json, to_json

_LONG = re.compile(rb"[0-9]{19}")


def dumps(value: Any) -> bytes:
    """Infinite numbers become null. Raises: TypeError for what JSON doesn't have, or nests too deep."""
    try:
        return orjson.dumps(value)
    except TypeError as exc:
        try:
            return to_json(value, inf_nan_mode="null")
        except ValueError:
            raise exc from None


def loads(raw: bytes | str) -> Any:
    """Raises: ValueError, also for numbers beyond a double."""
    found = orjson.loads(raw)
    return from_json(raw) if _LONG.search(raw.encode() if isinstance(raw, str) else raw) else found
