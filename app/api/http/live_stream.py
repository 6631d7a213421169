"""A stream of events without an end: what something looks like now, and again whenever it has changed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.error_shape import error_event
from app.api.http.sse import Sse
from app.api.http.uvicorn_protocol import DirectProtocol
from app.api.resumable.disconnect import client_left
from app.ending import end_tasks

_EVERY_S = 1.0
# For the document: what an endpoint answers to a client that `events_wanted`.
AS_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


class LiveStream(Response):
    """Ends when the client leaves or the server stops. An error before the first event has its status code."""

    def __init__(self, look: Callable[[], Awaitable[object]]) -> None:
        """`look`: what goes into an event, as orjson takes it. Raises: XylemError, which ends the stream."""
        self.status_code, self.background = 200, None
        self._look = look

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with Sse(scope, send, ids=False) as sse:
            try:
                await self._run(sse, receive)
                await sse.end()
            except Exception as exc:
                if not sse.started:
                    raise
                await sse.end(error_event(sse.error(exc), scope))

    async def _run(self, sse: Sse, receive: Receive) -> None:
        told = b""
        ends = [asyncio.create_task(client_left(receive)), asyncio.create_task(DirectProtocol.stopping.wait())]
        try:
            while not any(end.done() for end in ends):
                now = orjson.dumps(await self._look())
                await sse.start()
                if now != told:
                    await sse.write(b"data: %b\n\n" % now)
                told = now
                await asyncio.wait(ends, timeout=_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(ends)
