"""Direct writes: one chunk per stream and turn of the loop, and no stream is another's trouble."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

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
    cycle = SimpleNamespace(transport=transport, flow=SimpleNamespace(write_paused=False), disconnected=False)
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
