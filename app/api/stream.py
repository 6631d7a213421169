"""The streamed response: batches of deltas in, one write of SSE events out."""

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.call import Call
from app.api.chunks import Chunks, error_event
from app.api.failure import as_body
from app.api.kept.reading import Reading
from app.api.protocol import EXTENSION, DirectWriter
from app.deltas import merge
from app.errors import Cancelled, XylemError
from app.messages import Delta
from app.telemetry import logger

log = logger(__name__)

# An error before the first token still gets its status code. After this long the headers go out without one,
# since proxies give up on a server that sends none.
HEADERS_AFTER_S = 10.0
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class EventStream(Response):
    """Runs `call` and streams it. Not Starlette's StreamingResponse: no task group and no generator per token."""

    def __init__(self, call: Call | Reading, chunks: Chunks, opening: Callable[[int], bytes] | None = None) -> None:
        """`opening(choice)` is written before a choice's first delta."""
        self.status_code, self.background = 200, None
        self._call, self._chunks, self._opening = call, chunks, opening

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        async with self._call as call:
            deltas = await self._first()  # an error until here goes out with its status
            headers = [(name.encode(), value.encode()) for name, value in call.headers().items()]
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS + headers})
            try:
                await self._write(deltas, scope, send)
            except Cancelled as exc:
                call.failed(exc)
            except Exception as exc:
                error = exc if isinstance(exc, XylemError) else XylemError()
                if error is not exc:
                    log.error("stream_broke", request=call.id, exc_info=exc)
                call.failed(error)
                await send({"type": "http.response.body", "body": error_event(as_body(error)), "more_body": False})

    async def _first(self) -> list[tuple[int, Delta]] | None:
        try:
            async with asyncio.timeout(HEADERS_AFTER_S):
                return await self._call.deltas()
        except TimeoutError:
            return None

    async def _write(self, deltas: list[tuple[int, Delta]] | None, scope: Scope, send: Send) -> None:
        call = self._call
        assert isinstance(call, Call)
        body = b"".join(map(self._opening, range(call.choices))) if self._opening else b""
        direct = scope.get("extensions", {}).get(EXTENSION)
        if deltas is None:
            deltas = await call.deltas()
        while deltas:
            body += b"".join([self._chunk(choice, d) for choice, d in deltas])
            if direct is not None and not call.edited:
                call.answer.divert(self._sink(direct))
                direct = None
            waiting = call.answer.pending()
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            body = b""
            held_up = call.answer.pending() > waiting
            deltas = await call.deltas()
            if held_up:  # the client is behind: one event for all that came meanwhile
                deltas = merge(deltas)
        await send({"type": "http.response.body", "body": self._chunks.last(), "more_body": False})

    def _sink(self, direct: DirectWriter) -> Callable[[Delta], bool]:
        """Writes a delta the moment it comes, if the client keeps up. The hottest function there is."""
        call, chunk, ready, write = self._call, self._chunks.delta, direct.ready, direct.write
        assert isinstance(call, Call)
        alone = len(call.prompts) == 1

        def sink(d: Delta) -> bool:
            if not ready():
                return False
            call.completion_tokens += len(d.tokens)
            write(chunk(d.index if alone else call.choice(d), d))
            return True

        return sink

    def _chunk(self, choice: int, d: Delta) -> bytes:
        self._call.count(d)
        return self._chunks.delta(choice, d)
