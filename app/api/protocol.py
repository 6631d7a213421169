"""uvicorn's HTTP protocol with one ASGI extension: writing body chunks to a stream without awaiting.

A token that goes through `await send(...)` wakes a task and resumes the dozen coroutines between uvicorn and the
handler. Where the extension is there and the client keeps up, a token costs one call of `write` instead.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

EXTENSION = "xylem.direct"


class DirectWriter:
    """Body chunks of one response, between its `http.response.start` and its last body message."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._flow, self._write = cycle, cycle.flow, cycle.transport.write

    def ready(self) -> bool:
        """False when `send` has to be awaited instead: the client is behind or gone."""
        return not (self._flow.write_paused or self._cycle.disconnected)

    def write(self, body: bytes) -> None:
        """Only when ready. `body` must not be empty: an empty chunk ends the response."""
        self._write(b"%x\r\n%b\r\n" % (len(body), body))


class DirectProtocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As uvicorn's, but for the two addresses: nothing here looks at them, and asking takes longer than a token."""
        self.connections.add(self)
        self.transport = transport
        self.flow = FlowControl(transport)
        self.scheme = "http"

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            # uvicorn types an extension as a dict
            self.scope["extensions"] = {EXTENSION: cast(Any, DirectWriter(self.cycle))}
