"""The streamed response of a kept answer."""

from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from app.api.call import Call
from app.api.chunks import Chunks
from app.api.kept.leaving import until_left
from app.api.kept.reading import Reading
from app.api.stream import EventStream
from app.errors import Cancelled
from app.messages import Delta


def stream(call: Call | Reading, chunks: Chunks, opening: Callable[[int], bytes] | None = None) -> EventStream:
    """The answer as it comes, from where it is made or from where it is kept."""
    return EventStream(call, chunks, opening) if isinstance(call, Call) else KeptStream(call, chunks, opening)


class KeptStream(EventStream):
    """Of an answer that is kept: each event has an id, behind which it can be resumed. Nothing is merged."""

    def __init__(self, call: Reading, chunks: Chunks, opening: Callable[[int], bytes] | None = None) -> None:
        super().__init__(call, chunks, None if call.skip else opening)
        self._seen, self._skip = 0, call.skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ends with its reader, which the answer does not."""
        try:
            await until_left(super().__call__(scope, receive, send), receive)
        except Cancelled:
            pass

    async def _write(self, deltas: list[tuple[int, Delta]] | None, _scope: Scope, send: Send) -> None:
        body = b"".join(map(self._opening, range(self._call.choices))) if self._opening else b""
        if deltas is None:
            deltas = await self._call.deltas()
        while deltas:
            body += b"".join([self._chunk(choice, d) for choice, d in deltas])
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            body = b""
            deltas = await self._call.deltas()
        await send({"type": "http.response.body", "body": self._chunks.last(), "more_body": False})

    def _chunk(self, choice: int, d: Delta) -> bytes:
        chunk = super()._chunk(choice, d)
        self._seen += 1
        if self._seen <= self._skip or not chunk:
            return b""
        return b"id: %b:%d\n%b" % (self._call.id.encode(), self._seen, chunk)
