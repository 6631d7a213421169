"""An ASGI extension: reading and writing without awaiting.

A token that goes through `await send(...)` wakes a task and resumes the dozen coroutines between uvicorn and the
handler. Where the extension is there and the client keeps up, a token costs one call of `write` instead. In the same
way a body that has come, and an answer that is whole, need no ASGI messages: `take_body`, `respond`.
"""

import asyncio
from typing import ClassVar

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

EXTENSION = "xylem.direct"
LONG = 2**20  # bytes of a body that is not copied behind its head


class DirectWriter:
    """One request's body, and its response: whole, or body chunks between its start and its last body message.

    All writes in one iteration of the event loop are sent as one chunk, after it and before any coroutine that was
    woken later in it: the order of `write` and a later `send` is kept.
    """

    __slots__ = ("_checked_parts", "_cycle", "_flow", "_parts", "_transport")
    _dirty: ClassVar[list["DirectWriter"]] = []

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._flow, self._transport = cycle, cycle.flow, cycle.transport
        self._parts: list[bytes] = []  # a new list after each chunk
        self._checked_parts: list[bytes] | None = None  # at the last `is_silent`

    def peer(self) -> tuple[str, int] | None:
        """The address and port of the connection's other end; None: it is gone."""
        address = self._transport.get_extra_info("peername")
        return (address[0], address[1]) if address else None

    def take_body(self, most: int) -> bytes | None:
        """The request's body. None: not all of it is here, or it is over `most` bytes; then `receive` has it."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected or len(cycle.body) > most:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()  # the next `receive` waits for the client to leave
        cycle.flow.resume_reading()  # it is seen leaving only then
        return body

    def respond(self, response: Response) -> bool:
        """Sends a whole response. False: nothing is sent, since `send` has to wait for the client, or it is gone."""
        cycle = self._cycle
        if cycle.response_started or not self.ready() or self._transport.is_closing():
            return False
        fields = [b"%b: %b\r\n" % field for field in (*cycle.default_headers, *response.raw_headers)]
        if not cycle.keep_alive:
            fields.append(b"connection: close\r\n")
        head = b"%b%b\r\n" % (STATUS_LINE[response.status_code], b"".join(fields))
        if head.count(b"\n") != len(fields) + 2:
            raise RuntimeError("a header has a line break")
        if len(response.body) < LONG:
            self._transport.write(head + response.body)
        else:
            self._transport.write(head)
            self._transport.write(response.body)
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._transport.close()
        cycle.on_response()
        return True

    def ready(self) -> bool:
        """False when `send` has to be awaited instead: the client is behind or gone."""
        return not (self._flow.write_paused or self._cycle.disconnected)

    def write(self, body: bytes) -> None:
        """Only when ready."""
        if not self._parts:
            if not self._dirty:
                asyncio.get_running_loop().call_soon(self._flush)
            self._dirty.append(self)
        self._parts.append(body)

    def is_silent(self) -> bool:
        """Whether nothing has been sent since the last call. Sending costs nothing more for it."""
        before, self._checked_parts = self._checked_parts, self._parts
        return before is self._parts and not before

    def wrote(self) -> None:
        """Something was sent by `send`."""
        self._checked_parts = None

    def write_now(self, body: bytes) -> None:
        """Writes a chunk of its own, unless the headers are not sent yet, the end is, or the client doesn't read."""
        cycle = self._cycle
        within = cycle.response_started and not cycle.response_complete
        if within and self.ready() and not self._transport.is_closing():
            self._transport.write(self._framed(body))
            self.wrote()

    @classmethod
    def _flush(cls) -> None:
        dirty, cls._dirty = cls._dirty, []
        for writer in dirty:
            writer._send()  # noqa: SLF001 (its own class)

    def _send(self) -> None:
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if not body:  # an empty chunk would end the response
            parts.clear()
            return
        self._parts = []
        if not self._transport.is_closing():  # it may have closed since `ready` was asked
            self._transport.write(self._framed(body))

    def _framed(self, body: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(body), body) if self._cycle.chunked_encoding else body
