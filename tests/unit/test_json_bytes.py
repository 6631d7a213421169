"""JSON of whatever numbers clients and models write."""

import json
from typing import Any

import pytest

from app import json_bytes

BIG = 2**64


@pytest.mark.parametrize("value", [BIG, -BIG, 10**300, {"a": [BIG, 0.1, "\u2028", None]}, {"a": [2**63, 1e300, "é"]}])
def test_an_integer_of_any_length_is_written_and_read(value: Any) -> None:
    """Any other reader reads it in the same way."""
    raw = json_bytes.dumps(value)
    assert (json_bytes.loads(raw), json.loads(raw), json_bytes.loads(raw.decode())) == (value, value, value)


@pytest.mark.parametrize("place", [*range(2**16 - 40, 2**16 + 5), 2**17 - 30, 2**20])
def test_a_long_integer_is_found_wherever_it_stands(place: int) -> None:
    """The bytes that are read are examined in pieces."""
    assert json_bytes.loads(f'["{"x" * (place - 4)}",{BIG}]')[1] == BIG


@pytest.mark.parametrize("raw", ["1e400", f"[1e400, {BIG}]", "NaN", "9" * 310, "9" * 5000])
def test_a_number_beyond_a_double_is_not_read(raw: str) -> None:
    """Most readers would refuse the answer that repeats it."""
    with pytest.raises(ValueError, match="line 1"):
        json_bytes.loads(raw)


@pytest.mark.parametrize("beside", [0, BIG])
def test_an_infinite_number_is_written_as_null(beside: int) -> None:
    """Nothing beside it matters."""
    assert json.loads(json_bytes.dumps([float("inf"), beside])) == [None, beside]


@pytest.mark.parametrize("value", [object(), {1: BIG, object(): 1}, "\ud800"])
def test_what_json_does_not_have_is_a_type_error(value: Any) -> None:
    """A TypeError is orjson's answer, too."""
    with pytest.raises(TypeError):
        json_bytes.dumps(value)


def test_what_is_nested_too_deep_is_a_type_error() -> None:
    """No second way of writing takes more levels than the first."""
    value: Any = BIG
    for _ in range(300):
        value = [value]
    with pytest.raises(TypeError):
        json_bytes.dumps(value)
