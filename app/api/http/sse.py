"""A stream of server-sent events on its connection: its headers, and comments while nothing else is sent.

Proxies close a silent connection: nginx does after 60 s. Clients ignore comments.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import ClassVar, Self

from starlette.types import Scope, Send

from app.api.http import x_request_id
from app.api.http.direct_writer import EXTENSION, DirectWriter
from app.errors import XylemError
from app.running.loops import keep
from app.telemetry import logger

log = logger(__name__)

_COMMENT = b": waiting\n"
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Sse:
    """A context manager: while it is entered, silence is filled with comments, under DirectProtocol only."""

    _open: ClassVar[set["Sse"]] = set()

    def __init__(self, scope: Scope, send: Send, *, ids: bool) -> None:
        """`ids`: whether its events have ids."""
        self.send, self._scope = send, scope
        # Most clients read up to an empty line. With ids there is none: OpenAI's client and httpx-sse would take it for
        # an event without data.
        self._comment = _COMMENT if ids else _COMMENT + b"\n"
        self.direct: DirectWriter | None = scope.get("extensions", {}).get(EXTENSION)
        self.started = False  # whether the headers are sent: then an error can't have a status code any more
        # The response's other headers, once they are known; and the events before any output.
        self.headers: Callable[[], Mapping[str, str]] = dict
        self.opening: Callable[[], bytes] = bytes
        self._starting: asyncio.Task[None] | None = None

    @classmethod
    async def run(cls, every_s: float) -> None:
        """Fills silence until cancelled: no stream is silent for longer than `every_s`."""

        def look() -> None:
            for stream in cls._open:
                stream._fill_silence()  # noqa: SLF001 (its own class)

        await keep("streams_not_looked_at", look, every_s / 2, later=True)

    def __enter__(self) -> Self:
        if self.direct is not None:
            self._open.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.discard(self)
        self.started = True  # or a `start` task would begin a second response

    async def start(self) -> None:
        """Sends the headers and the opening, once."""
        if self.started:
            return
        self.started = True
        headers = [(name.encode(), value.encode()) for name, value in self.headers().items()]
        opening = self.opening()
        await self.send({"type": "http.response.start", "status": 200, "headers": _HEADERS + headers})
        await self.write(opening)

    async def write(self, body: bytes) -> None:
        """Sends events."""
        if body:
            await self.send({"type": "http.response.body", "body": body, "more_body": True})
            if self.direct is not None:
                self.direct.wrote()

    async def end(self, body: bytes = b"") -> None:
        """Sends the last events, and ends the response."""
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def _fill_silence(self) -> None:
        """Sends the headers or a comment if nothing was sent since the last call."""
        assert self.direct is not None
        if not self.direct.is_silent():
            return
        if self.started:
            self.direct.write_now(self._comment)
        elif self._starting is None:
            self._starting = asyncio.create_task(self.start())


def shown_error(exc: Exception, scope: Scope) -> XylemError:
    """The error to be sent to a client that has the headers already."""
    if isinstance(exc, XylemError):
        return exc
    log.error("stream_broke", **x_request_id.names(scope), exc_info=exc)
    return XylemError()
