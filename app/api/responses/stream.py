"""The streamed response of the Responses API."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.kept.leaving import until_left
from app.api.kept.log import Log
from app.api.responses.events import Events
from app.api.responses.live import Live
from app.api.stream import HEADERS, HEADERS_AFTER_S
from app.errors import Cancelled, XylemError, from_wire
from app.messages import Event, Failed
from app.telemetry import logger

log = logger(__name__)


async def _stays() -> None:
    """The response goes on without its reader."""


class ResponseStream(Response):
    def __init__(
        self,
        source: Log | Live,
        events: Events,
        headers: Callable[[], Mapping[str, str]],
        *,
        at_once: bool,
        left: Callable[[], Awaitable[None]] = _stays,
    ) -> None:
        """`at_once`: there is a response to show, whatever comes. Else an error before anything goes out as one."""
        self.status_code, self.background = 200, None
        self._source, self._events, self._told = source, events, headers
        self._at_once, self._left = at_once, left

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(self._source, Live):  # whose call watches the client itself
            async with self._source.call:
                await self._run(send)
            return
        try:
            await until_left(self._run(send), receive)
        except Cancelled:
            await self._left()

    async def _run(self, send: Send) -> None:
        batch = None if self._at_once else await self._first()
        headers = [(name.encode(), value.encode()) for name, value in self._told().items()]
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS + headers})
        last = b""
        try:
            await _write(send, self._events.opening())
            if batch is None:
                batch = await self._source.batch()
            while batch:
                await _write(send, self._events.write(batch))
                batch = await self._source.batch()
        except Cancelled:
            pass
        except Exception as exc:
            error = exc if isinstance(exc, XylemError) else XylemError()
            if error is not exc:
                log.error("stream_broke", exc_info=exc)
            last = self._events.error(error)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _first(self) -> list[Event] | None:
        try:
            async with asyncio.timeout(HEADERS_AFTER_S):
                batch = await self._source.batch()
        except TimeoutError:
            return None
        if isinstance(batch[0], Failed) and batch[0].code != Cancelled.code:
            raise from_wire(batch[0].code, batch[0].message)
        return batch


async def _write(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
