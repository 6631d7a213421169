"""Direct writes: one chunk per stream and turn of the loop, and no stream is another's trouble."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.api.protocol import DirectWriter


class Transport:
    """What uvloop's does: a closed one refuses."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        if self.closed:
            raise RuntimeError("the handler is closed")
        self.written.append(data)


def writer() -> tuple[DirectWriter, Transport]:
    transport = Transport()
    cycle = SimpleNamespace(
        transport=transport,
        flow=SimpleNamespace(write_paused=False),
        disconnected=False,
        response_started=True,
        response_complete=False,
    )
    return DirectWriter(cast(Any, cycle)), transport


async def test_what_is_written_in_one_turn_is_one_chunk() -> None:
    """Many tokens, one system call; empty ones make no chunk, since an empty chunk ends a response."""
    one, transport = writer()
    for body in (b"abc", b"", b"de"):
        one.write(body)
    two, silent = writer()
    two.write(b"")
    assert transport.written == []
    await asyncio.sleep(0)
    assert transport.written == [b"5\r\nabcde\r\n"]
    assert silent.written == []


async def test_a_connection_that_closed_meanwhile_stops_no_other_stream() -> None:
    """Its client went in the same turn in which a token for it came."""
    gone, closed = writer()
    here, transport = writer()
    for turn in (b"1", b"2"):
        gone.write(turn)
        here.write(turn)
        closed.closed = True
        await asyncio.sleep(0)
    assert transport.written == [b"1\r\n1\r\n", b"1\r\n2\r\n"]


async def test_silence_is_what_neither_way_of_writing_has_broken() -> None:
    """Tokens that end no character break none: their chunks are empty, and nothing leaves."""
    one, _ = writer()
    assert [one.is_silent(), one.is_silent(), one.is_silent()] == [False, True, True]
    one.write(b"abc")
    assert not one.is_silent()  # it is about to leave
    await asyncio.sleep(0)
    assert [one.is_silent(), one.is_silent()] == [False, True]
    one.wrote()  # by `send`
    assert [one.is_silent(), one.is_silent()] == [False, True]
    one.write(b"")
    await asyncio.sleep(0)
    assert one.is_silent()


async def test_what_is_written_between_chunks_is_a_chunk_and_breaks_the_silence() -> None:
    one, transport = writer()
    one.write(b"abc")
    one.write_now(b": waiting")
    await asyncio.sleep(0)
    assert transport.written == [b"9\r\n: waiting\r\n", b"3\r\nabc\r\n"]
    assert not one.is_silent()
    assert one.is_silent()
    one.write_now(b": waiting")
    assert not one.is_silent()


@pytest.mark.parametrize(
    ("field", "value"),
    [("response_started", False), ("response_complete", True), ("disconnected", True), ("write_paused", True)],
)
async def test_nothing_is_written_outside_a_response_or_to_a_client_that_does_not_read(field: str, value: bool) -> None:
    """It would break the next response of the connection; or comments would pile up."""
    one, transport = writer()
    cycle: Any = one._cycle
    setattr(cycle.flow if field == "write_paused" else cycle, field, value)
    one.write_now(b": waiting")
    assert transport.written == []


async def test_nothing_is_written_to_a_closed_connection() -> None:
    one, transport = writer()
    transport.closed = True
    one.write_now(b": waiting")
    assert transport.written == []
