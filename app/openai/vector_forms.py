"""The forms in which an answer shows a vector."""

from array import array
from base64 import b64encode
from collections.abc import Callable, Mapping
from math import hypot
from typing import Any, Literal

import orjson

VectorForm = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
_SIGNED = 128  # what is between a signed byte and the unsigned one that stands for the same number
# By the byte of a float that has its sign: "1" for what is not negative.
_BITS = bytes(b"01"[byte < _SIGNED] for byte in range(256))


def floats(raw: bytes) -> "array[float]":
    """A vector's numbers, in the byte order of this machine: nobody has tried a big-endian one."""
    return array("f", raw)


def _int8(raw: bytes) -> list[int]:
    """The vector made 127 long, so that those of all texts, requests and replicas can be compared."""
    numbers = floats(raw)
    length = hypot(*numbers)
    scale = 127 / length if length else 0.0
    return [round(number * scale) for number in numbers]


def _packed(raw: bytes) -> bytes:
    """A bit for each number, 1 if it is not negative: the first one is a byte's highest; the last byte is filled up."""
    bits = raw[3::4].translate(_BITS)
    size = -(-len(bits) // 8)
    return int(bits.ljust(8 * size, b"0"), 2).to_bytes(size, "big")


def _listed(numbers: "list[float] | list[int]") -> Any:
    """Written one vector at a time, as a Fragment of JSON, so that other threads run between."""
    return orjson.Fragment(orjson.dumps(numbers))


# Each of a vector as float32, little-endian, which is what `base64` shows.
FORMS: Mapping[VectorForm, Callable[[bytes], Any]] = {
    "float": lambda raw: _listed(floats(raw).tolist()),
    "int8": lambda raw: _listed(_int8(raw)),
    "uint8": lambda raw: _listed([number + _SIGNED for number in _int8(raw)]),
    "binary": lambda raw: _listed([byte - _SIGNED for byte in _packed(raw)]),
    "ubinary": lambda raw: _listed(list(_packed(raw))),
    "base64": lambda raw: b64encode(raw).decode(),
}
