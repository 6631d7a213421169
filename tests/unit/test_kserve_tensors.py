"""Tensors of the Open Inference Protocol: their bytes, and what is refused."""

import struct
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import RequestError
from app.kserve.tensors import Tensor, checked, flat, from_raw
from tests.refusals import refused

TEXTS = st.lists(st.text())


@given(TEXTS)
def test_texts_come_back_from_their_bytes(texts: list[str]) -> None:
    raw = Tensor("t", "BYTES", (len(texts),), texts).raw()
    assert checked("t", "BYTES", [len(texts)], from_raw("t", "BYTES", raw)).values == texts


@given(TEXTS, st.data())
def test_bytes_that_end_too_early_are_refused(texts: list[str], data: st.DataObject) -> None:
    """A cut may also leave fewer texts, which their shape refuses."""
    raw = Tensor("t", "BYTES", (len(texts),), texts).raw()
    if raw:
        cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
        with pytest.raises(RequestError, match="'t'"):
            checked("t", "BYTES", [len(texts)], from_raw("t", "BYTES", cut))


def test_bytes_are_as_the_extension_for_binary_data_has_them() -> None:
    """A text with its length in four bytes before it; truths in one; float32, little-endian."""
    assert Tensor("t", "BYTES", (2,), ["é", ""]).raw() == b"\x02\x00\x00\x00\xc3\xa9\x00\x00\x00\x00"
    assert from_raw("t", "BOOL", b"\x00\x01\x02") == [False, True, True]
    assert Tensor("t", "FP32", (2,), array("f", [1.0, -0.5])).raw() == struct.pack("<ff", 1.0, -0.5)


@pytest.mark.parametrize(
    ("datatype", "shape", "values"),
    [
        ("INT32", [1], [1]),
        ("BYTES", [2], ["a"]),
        ("BYTES", [-1], ["a"]),
        ("BYTES", [], ["a", "b"]),
        ("BYTES", [1], [True]),
        ("BOOL", [1], [1]),
        ("BYTES", [1], [b"\xff"]),
    ],
)
def test_what_is_no_such_tensor_is_refused_by_its_name(datatype: str, shape: list[int], values: list[Any]) -> None:
    with refused("the input", "'the input'"):
        checked("the input", datatype, shape, values)


def test_nested_lists_are_values_one_after_the_other() -> None:
    assert flat([["a"], ["b"]]) == flat(["a", "b"]) == ["a", "b"]
    assert flat([]) == []
