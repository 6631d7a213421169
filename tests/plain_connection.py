"""A client's connection to an ASGI app under our HTTP protocol, without a socket."""

import asyncio
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from app.api.http.uvicorn_protocol import DirectProtocol


class PlainConnection:
    """A connection that is its protocol's transport: what the server writes is `written`."""

    def __init__(self, app: ASGIApp, server: ServerState | None = None, address: str = "10.0.0.1") -> None:
        self.written, self.closed, self.reading, self._address = b"", False, True, address
        config = Config(cast(Any, app), log_config=None, interface="asgi3", proxy_headers=False, ws="none")
        self.protocol = DirectProtocol(config, server or ServerState(), {})
        self.protocol.connection_made(cast(Any, self))

    async def feed(self, *pieces: bytes) -> bytes:
        """All that is written, by when nothing more happens by itself."""
        for piece in pieces:
            self.protocol.data_received(piece)
            for _ in range(10):
                await asyncio.sleep(0)
        return self.written

    def get_extra_info(self, name: str) -> object:
        return (self._address, 4711) if name == "peername" else None

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
