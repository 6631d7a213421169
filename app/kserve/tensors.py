"""Tensors of the datatypes that are used here, and their bytes: little-endian, a text with its length before it."""

import math
import struct
from array import array
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.errors import RequestError
from app.openai.encoding import MOST_INPUTS

Datatype = Literal["BYTES", "BOOL", "FP32"]
PICTURE = "image"  # the name of the tensors whose values are files
_URLS = ("https:", "http:", "data:", "file:")
_LENGTH = struct.Struct("<I")
_INPUTS: dict[str, tuple[Datatype, type]] = {"BYTES": ("BYTES", str), "BOOL": ("BOOL", bool)}


@dataclass(frozen=True)
class Tensor:
    """`values`: one after the other; of BYTES `str`, or bytes of a file; of BOOL `bool`, of FP32 `float`."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    values: Sequence[Any]

    def raw(self) -> bytes:
        """The bytes of an output: BYTES or FP32."""
        if isinstance(self.values, array):
            return self.values.tobytes()
        texts = [value.encode() if isinstance(value, str) else value for value in self.values]
        return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def checked(name: str, datatype: str, shape: Sequence[int], values: Sequence[Any]) -> Tensor:
    """An input. Raises: RequestError."""
    if datatype not in _INPUTS:
        raise RequestError(f"Input '{name}': its datatype has to be BYTES or BOOL, and is {datatype!r}.", param=name)
    if len(values) > MOST_INPUTS:
        raise _too_many(name)
    if any(side < 0 for side in shape) or math.prod(shape) != len(values):
        raise RequestError(f"Input '{name}': {len(values)} values don't fit its shape {list(shape)}.", param=name)
    datatype_name, value_type = _INPUTS[datatype]
    is_file = name == PICTURE and datatype == "BYTES"
    texts = [_text(name, value) if isinstance(value, bytes) and not is_file else value for value in values]
    if not all(type(value) is value_type or (is_file and isinstance(value, bytes)) for value in texts):
        raise RequestError(f"Input '{name}': a value is not of its datatype, {datatype}.", param=name)
    return Tensor(name, datatype_name, tuple(shape), texts)


def from_raw(name: str, datatype: str, raw: bytes) -> list[Any]:
    """The values of an input, of which no more are made than it may have. Raises: RequestError."""
    if datatype == "BOOL":
        if len(raw) > MOST_INPUTS:
            raise _too_many(name)
        return [byte != 0 for byte in raw]
    texts: list[Any] = []
    at = 0
    while at < len(raw):
        if len(texts) == MOST_INPUTS:
            raise _too_many(name)
        if at + _LENGTH.size > len(raw):
            raise RequestError(f"Input '{name}': its bytes end within a length.", param=name)
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size + length
        if at > len(raw):
            raise RequestError(f"Input '{name}': its bytes end within a text.", param=name)
        texts.append(raw[at - length : at])
    return texts


def flat(data: Any) -> list[Any]:
    """The values of nested lists, as JSON may have them."""
    if not any(isinstance(one, list) for one in data):
        return list(data)
    return [value for one in data for value in (one if isinstance(one, list) else [one])]


def picture_url(value: str | bytes) -> str:
    """The URL of a picture: of its file, of the same in base64, or its own."""
    if isinstance(value, str) and value.startswith(_URLS):
        return value
    if isinstance(value, bytes) and value.startswith(tuple(url.encode() for url in _URLS)):
        return value.decode(errors="replace")
    return "data:image/x-file;base64," + (b64encode(value).decode() if isinstance(value, bytes) else value)


def _too_many(name: str) -> RequestError:
    return RequestError(f"Input '{name[:64]}' has more than {MOST_INPUTS} values.", param=name)


def _text(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise RequestError(f"Input '{name}': a text is not UTF-8.", param=name) from exc
