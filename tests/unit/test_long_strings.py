"""Long strings of JSON are taken out of it and put back; everything else stays as it came."""

import json
import random
from typing import Any

import orjson
import pytest

from app.api.resumable.long_strings import LONG, LongStrings, Parted, parted

PHOTO = "data:image/jpeg;base64," + "Qk0+/9" * (LONG // 3)


def back(parts: Parted) -> bytes:
    pieces = parts.raw.split(b"\0")
    return b"".join(parts.strings[p.decode()] if i % 2 else p for i, p in enumerate(pieces))


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ({"a": PHOTO}, 1),
        ([PHOTO, "b", {"c": [PHOTO + "d"]}, PHOTO], 3),
        ({PHOTO: PHOTO}, 2),
        ({"a": "x" * LONG}, 0),
        ({"a": "x" * (LONG + 1)}, 1),
        ({"a": ["x" * 999] * 3000}, 0),
        ({"a": list(range(LONG)), "b": 1}, 0),
        ({"a": ("x" * 100 + "\n") * (LONG // 50)}, 0),
        ({"a": 'x"' * LONG, "b": PHOTO}, 1),
        ({"a": "\0", "b": PHOTO}, 1),
    ],
)
def test_strings_are_taken_out_and_put_back(value: Any, count: int) -> None:
    raw = orjson.dumps(value)
    parts = parted(raw)
    assert len(parts.strings) == count
    assert back(parts) == raw
    assert parts.size == len(raw) - len(parts.raw) + sum(len(name) + 2 for name in parts.strings)
    assert LongStrings.is_whole(parts.raw) is not bool(count)


def test_what_is_between_strings_is_none() -> None:
    """Written in another way than ours, with much space."""
    raw = json.dumps({"a": [*range(2 * LONG)], "b": PHOTO, "c": {}}, indent=4).encode()
    parts = parted(raw)
    assert [bytes(one) for one in parts.strings.values()] == [PHOTO.encode()]
    assert orjson.loads(LongStrings.shortened(parts.raw)) == {"a": [*range(2 * LONG)], "b": "-", "c": {}}
    assert back(parts) == raw


def test_any_json_comes_back() -> None:
    dice = random.Random(1)
    for _ in range(30):
        value = [dice.choice(["\\", '"', "x", " ", "\n", ","]) * dice.choice([1, LONG // 2, LONG + 1]) for _ in "12345"]
        raw = orjson.dumps(value)
        parts = parted(raw)
        assert back(parts) == raw
        assert len(orjson.loads(LongStrings.shortened(parts.raw))) == 5
