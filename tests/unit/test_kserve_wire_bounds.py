"""A gRPC message is bounded before protobuf builds it; what the bounds let through, protobuf takes, and the reverse."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.kserve.messages import infer_message
from app.api.kserve.protocol import MESSAGES
from app.api.kserve.wire_bounds import MOST_FIELDS, check_fields
from app.errors import RequestError
from tests.kserve import asked

MAX_BODY = 16 * 2**20


def field(number: int, data: bytes) -> bytes:
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


EMPTIES = b"\x42\x00" * (MAX_BODY // 2 - 20)
WORST = {
    "texts": field(5, field(5, EMPTIES)),
    "bools": field(5, field(5, field(1, bytes(MAX_BODY - 40)))),
    "floats": field(5, field(5, field(6, bytes(MAX_BODY - 40)))),
    "shape": field(5, field(3, bytes(MAX_BODY - 40))),
    "inputs": b"\x2a\x00" * (MAX_BODY // 2),
    "parameters": b"\x22\x00" * (MAX_BODY // 2),
    "an output's parameters": field(6, b"\x12\x00" * (MAX_BODY // 2 - 20)),
    "one parameter over and over": field(4, field(2, b"\x08\x01" * (MAX_BODY // 2 - 20))),
    "unknown fields": b"\x7a\x00" * (MAX_BODY // 2),
    "unknown numbers": b"\x78\x01" * (MAX_BODY // 2),
    "a group": b"\x0b" * MAX_BODY,
    "a number without end": b"\xff" * MAX_BODY,
}


@pytest.mark.parametrize("worst", WORST)
def test_a_message_of_millions_of_values_is_refused_by_a_look(worst: str) -> None:
    """The look's time doesn't depend on the size: protobuf takes a hundred times as long for the cheapest of them."""
    began = time.thread_time()
    with pytest.raises(RequestError):
        check_fields(WORST[worst])
    assert time.thread_time() - began < 0.5


def test_as_many_texts_as_an_input_may_have_are_taken() -> None:
    message = MESSAGES["ModelInferRequest"](model_name="m")
    message.inputs.add(name="text_input", datatype="BYTES", shape=[2048]).contents.bytes_contents.extend([b"ab"] * 2048)
    assert infer_message(message.SerializeToString()) == message
    assert MOST_FIELDS > 2048


@given(
    st.text(max_size=300), st.booleans(), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2**62) | st.text())
)
def test_what_a_client_sends_passes(text: str, streams: bool, parameters: dict[str, object]) -> None:
    message = asked(text, streams=streams, id="7", **parameters)
    assert infer_message(message.SerializeToString()) == message


@given(st.binary(max_size=60), st.integers(0, 60))
def test_what_is_no_message_is_an_error_of_the_client(junk: bytes, cut: int) -> None:
    good = asked("hello", streams=True, max_tokens=3).SerializeToString()
    for raw in (junk, good[:cut] + junk, good[:-1]):
        try:
            infer_message(raw)
        except RequestError:
            continue
