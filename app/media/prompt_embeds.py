"""Prompt embeddings: a prompt's rows, which a client computed itself, as base64 of a safetensors file.

The format is read here rather than by its library, which the API does not have: a length, a JSON header, and bytes.
"""

import binascii
import hashlib

import orjson
from msgspec import Struct

from app.media.refused import Refused

DTYPES = {"F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2)}  # of the file: torch's name, bytes
_MOST_HEADER = 2**16  # bytes of the file before the numbers
_SLICE = 2**18  # bytes at a time: in between, other threads may run
# A number is infinite or NaN if all bits of its exponent are set. Of its highest byte, and of the one below, 0x80 says
# that the bits there are.
_SET = {
    "float16": (bytes(0x80 * (byte & 0x7C == 0x7C) for byte in range(256)), bytes([0x80]) * 256),
    "bfloat16": (bytes(0x80 * (byte & 0x7F == 0x7F) for byte in range(256)), bytes(byte & 0x80 for byte in range(256))),
}
_SET["float32"] = _SET["bfloat16"]


class PromptEmbeds(Struct, frozen=True):
    rows: int  # one for each token
    width: int  # numbers in a row: the model's hidden size
    dtype: str  # as torch names it: float32, float16 or bfloat16
    data: bytes  # row by row, little-endian
    sha256: str  # of kind, shape, dtype and `data`


def prompt_embeds_of(text: str, width: int, most_rows: int) -> PromptEmbeds:
    """`width`: the model's. `most_rows`: at most so many. Raises: Refused, the longer ones before they are decoded."""
    most = 8 + _MOST_HEADER + most_rows * width * 4
    if len(text) > (most + 2) // 3 * 4:
        raise Refused(f"it has more than {most} bytes, which {most_rows} rows of {width} numbers can't have")
    file = _decoded(text)
    kind, shape, data = _tensor(file)
    if kind not in DTYPES:
        raise Refused(f"its dtype has to be one of {', '.join(DTYPES)}")
    if len(shape) != 2 or shape[1] != width:
        raise Refused(f"its shape has to be (tokens, {width}), and is ({', '.join(map(str, shape[:4]))})")
    rows, (dtype, size) = shape[0], DTYPES[kind]
    if not 0 < rows <= most_rows:
        raise Refused(f"it has to have from 1 to {most_rows} rows, and has {rows}")
    if len(data) != rows * width * size:
        raise Refused("its numbers are fewer or more than its shape says")
    if not _is_finite(data, dtype, size):
        raise Refused("it has numbers that are infinite or NaN")
    digest = hashlib.sha256(f"embeds {rows} {width} {dtype}\n".encode())
    digest.update(data)
    return PromptEmbeds(rows, width, dtype, data, digest.hexdigest())


def _decoded(text: str) -> bytes:
    pieces = []
    for start in range(0, len(text), _SLICE):
        piece = text[start : start + _SLICE]
        try:
            data = binascii.a2b_base64(piece, strict_mode=True)
        except ValueError as exc:  # binascii.Error, and characters beyond ASCII
            raise Refused("its base64 is not valid") from exc
        if start + _SLICE < len(text) and len(data) * 4 != len(piece) * 3:  # padding in the middle
            raise Refused("its base64 is not valid")
        pieces.append(data)
    return b"".join(pieces)


def _tensor(file: bytes) -> tuple[str, list[int], bytes]:
    """The file's only tensor: dtype, shape and bytes. Raises: Refused."""
    error = Refused("it is no safetensors file")
    size = int.from_bytes(file[:8], "little")
    if len(file) < 8 or not 0 < size <= min(_MOST_HEADER, len(file) - 8):
        raise error
    try:
        header = orjson.loads(file[8 : 8 + size])
    except orjson.JSONDecodeError as exc:
        raise error from exc
    if not isinstance(header, dict):
        raise error
    tensors = [value for name, value in header.items() if name != "__metadata__"]
    if len(tensors) != 1:
        raise Refused(f"it has to have one tensor, and has {len(tensors)}")
    tensor = tensors[0] if isinstance(tensors[0], dict) else {}
    kind, shape, place = (tensor.get(name) for name in ("dtype", "shape", "data_offsets"))
    if not (isinstance(kind, str) and isinstance(shape, list) and place == [0, len(file) - 8 - size]):
        raise error
    if not all(type(side) is int and side >= 0 for side in shape):
        raise error
    return kind, shape, file[8 + size :]


def _is_finite(data: bytes, dtype: str, size: int) -> bool:
    high, below = _SET[dtype]
    for start in range(0, len(data), _SLICE):
        piece = data[start : start + _SLICE]
        ends = int.from_bytes(piece[size - 1 :: size].translate(high), "little")
        if ends and ends & int.from_bytes(piece[size - 2 :: size].translate(below), "little"):
            return False
    return True
