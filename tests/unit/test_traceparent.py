"""W3C's header is read as W3C says, and whatever else stands there begins a new trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.messages.trace import TracePlace
from app.tracing.traceparent import Caller, new_span_id, new_trace_id, read
from tests.jobs import job

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(("header", "sampled"), [
    (f"00-{TRACE}-{SPAN}-01", True),
    (f"00-{TRACE}-{SPAN}-00", False),
    (f"00-{TRACE}-{SPAN}-02", False),
    (f"00-{TRACE}-{SPAN}-ff", True),
    (f"01-{TRACE}-{SPAN}-01", True),
    (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
])  # fmt: skip
def test_a_well_formed_header_names_its_caller(header: str, *, sampled: bool) -> None:
    """A later version's text behind the fields is not understood, and does no harm."""
    assert read(header.encode()) == Caller(TRACE, SPAN, sampled)


@pytest.mark.parametrize("header", [
    "",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-01-more",
    f"cc-{TRACE}-{SPAN}-01more",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f"00-{TRACE[1:]}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-1",
    f" 00-{TRACE}-{SPAN}-01",
])  # fmt: skip
def test_any_other_header_has_no_caller(header: str) -> None:
    assert read(header.encode()) is None


@given(st.binary())
def test_no_bytes_break_it(header: bytes) -> None:
    caller = read(header)
    assert caller is None or (len(caller.trace), len(caller.span)) == (32, 16)


def test_what_is_passed_on_is_well_formed() -> None:
    for is_sampled in (True, False):
        place = TracePlace(new_trace_id(), new_span_id(), SPAN, is_sampled)
        assert read(place.traceparent.encode()) == Caller(place.trace, place.span, is_sampled)


def test_log_lines_name_the_trace_where_there_is_one() -> None:
    assert job(x_request_id="mine").names == {"x_request_id": "mine"}
    traced_job = job(x_request_id="mine", traceparent=TracePlace(TRACE, SPAN).traceparent)
    assert traced_job.names == {"x_request_id": "mine", "trace_id": TRACE}
