"""The streamed response: batches of deltas in, one write of SSE events out."""

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.call import Call
from app.api.chunks import Chunks, error_event, merge
from app.api.failure import as_body
from app.errors import Cancelled, XylemError
from app.messages import Delta

# An error before the first token still gets its status code. After this long the headers go out without one,
# since proxies give up on a server that sends none.
_HEADERS_AFTER_S = 10.0
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class EventStream(Response):
    """Runs `call` and streams it. Not Starlette's StreamingResponse: no task group and no generator per token."""

    def __init__(self, call: Call, chunks: Chunks, opening: Callable[[int], bytes] | None = None) -> None:
        """`opening(choice)` is written before a choice's first delta."""
        self.status_code, self.background = 200, None
        self._call, self._chunks, self._opening = call, chunks, opening

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async with self._call as call:
            first = asyncio.ensure_future(call.deltas())
            await asyncio.wait([first], timeout=_HEADERS_AFTER_S)
            if first.done():
                first.result()  # an error goes out with its status
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            try:
                await self._write(first, send)
            except XylemError as exc:
                call.failed(exc)
                if not isinstance(exc, Cancelled):
                    await send({"type": "http.response.body", "body": error_event(as_body(exc)), "more_body": False})

    async def _write(self, first: "asyncio.Future[list[tuple[int, Delta]]]", send: Send) -> None:
        call, delta = self._call, self._chunks.delta
        body = b"".join(map(self._opening, range(call.choices))) if self._opening else b""
        deltas = await first
        while deltas:
            body += b"".join([delta(choice, d) for choice, d in deltas])
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            body = b""
            behind = call.answer.behind()
            deltas = await call.deltas()
            if behind:
                deltas = merge(deltas)
        await send({"type": "http.response.body", "body": self._chunks.last(), "more_body": False})
