"""JSON with integers of any length: orjson writes none over 64 bits, and reads them as fractions."""

from typing import Any

import orjson
from pydantic_core import from_json, to_json

_MANY = b"0" * 19  # digits, of which 64 bits have hardly more
_AS_ZEROS = bytes(ord("0") if byte in b"0123456789" else 0 for byte in range(256))
_PIECE = 2**16  # bytes that are looked at in one go, which holds up all other threads


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
    value = orjson.loads(raw)
    return from_json(raw) if _has_long(raw.encode() if isinstance(raw, str) else raw) else value


def _has_long(raw: bytes) -> bool:
    """Whether so many digits follow each other that orjson may have made a fraction of an integer."""
    step = _PIECE - len(_MANY) + 1
    return any(_MANY in raw[at : at + _PIECE].translate(_AS_ZEROS) for at in range(0, len(raw), step))
