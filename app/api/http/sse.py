"""A stream of server-sent events on its connection: its headers, and comments while nothing else is sent.

Proxies cut a connection on which nothing comes: nginx does after 60 s. Clients ignore comments.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import ClassVar, Self

from starlette.types import Scope, Send

from app.api.http import x_request_id
from app.api.http.uvicorn_protocol import EXTENSION, DirectWriter
from app.errors import XylemError
from app.telemetry import logger

log = logger(__name__)

_COMMENT = b": waiting\n"
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Sse:
    """A context manager: while it is entered, silence is looked for. Under DirectProtocol only."""

    _open: ClassVar[set["Sse"]] = set()

    def __init__(self, scope: Scope, send: Send, *, ids: bool) -> None:
        """`ids`: whether its events have some."""
        self.send, self._scope = send, scope
        # For clients that look at what is between two empty lines, and for those that take an empty line behind an
        # event with an id for an event without data: OpenAI's and httpx-sse do.
        self._comment = _COMMENT if ids else _COMMENT + b"\n"
        self.direct: DirectWriter | None = scope.get("extensions", {}).get(EXTENSION)
        self.started = False  # from then on an error can't have a status code any more
        # Of the response, as far as they are known; and the first events, before anything has come.
        self.headers: Callable[[], Mapping[str, str]] = dict
        self.opening: Callable[[], bytes] = bytes
        self._starting: asyncio.Task[None] | None = None

    @classmethod
    async def run(cls, every_s: float) -> None:
        """Until cancelled: no client hears nothing for longer than `every_s`."""
        while True:
            await asyncio.sleep(every_s / 2)
            try:
                for stream in cls._open:
                    stream._look()  # noqa: SLF001 (its own class)
            except Exception:
                log.exception("streams_not_looked_at")

    def __enter__(self) -> Self:
        if self.direct is not None:
            self._open.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.discard(self)
        self.started = True  # or a start that is under way would be another response's

    async def start(self) -> None:
        """The headers, once; and the opening."""
        if self.started:
            return
        self.started = True
        headers = [(name.encode(), value.encode()) for name, value in self.headers().items()]
        opening = self.opening()
        await self.send({"type": "http.response.start", "status": 200, "headers": _HEADERS + headers})
        await self.write(opening)

    async def write(self, body: bytes) -> None:
        """Whole events."""
        if body:
            await self.send({"type": "http.response.body", "body": body, "more_body": True})
            if self.direct is not None:
                self.direct.wrote()

    async def end(self, body: bytes = b"") -> None:
        """With the last events."""
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def error(self, exc: Exception) -> XylemError:
        """The error as told to a client that has its headers already."""
        if isinstance(exc, XylemError):
            return exc
        log.error("stream_broke", x_request_id=x_request_id.of(self._scope), exc_info=exc)
        return XylemError()

    def _look(self) -> None:
        """Twice in the time that may pass in silence."""
        assert self.direct is not None
        if not self.direct.is_silent():
            return
        if self.started:
            self.direct.write_now(self._comment)
        elif self._starting is None:
            self._starting = asyncio.create_task(self.start())
