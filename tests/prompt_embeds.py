"""Files of prompt embeddings, as clients send them: safetensors, in base64."""

import base64
import json
import random
import struct
from array import array
from typing import Any

NAMES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I32": 4}  # bytes of a number


def rows(seed: int, count: int, width: int) -> bytes:
    """float32 numbers of which each seed has others."""
    rng = random.Random(seed)
    return array("f", (rng.uniform(-1, 1) for _ in range(count * width))).tobytes()


def file(*tensors: tuple[str, list[int], bytes], **others: Any) -> bytes:
    """`tensors`: dtype, shape and bytes. `others`: of the header."""
    header: dict[str, Any] = {}
    place = 0
    for number, (dtype, shape, data) in enumerate(tensors):
        header[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + len(data)]}
        place += len(data)
    raw = json.dumps(header | others).encode()
    return struct.pack("<Q", len(raw)) + raw + b"".join(data for _, _, data in tensors)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def embeds(seed: int, count: int, width: int = 64) -> str:
    """Embeddings as in a body; the mock's model has 64 numbers in a row."""
    return encoded(file(("F32", [count, width], rows(seed, count, width))))
