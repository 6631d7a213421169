"""The streamed response of a kept answer."""

from collections.abc import Awaitable, Callable

from starlette.types import Receive

from app.api.http.disconnect import until_client_left
from app.api.http.sse import Sse
from app.api.openai.sse_response import EventStream
from app.api.resumable.replay import Replay
from app.dispatch.answering.generation import Generation
from app.dispatch.generation_base import GenerationBase
from app.endpoint_registry import StreamWriter
from app.errors import Cancelled, ServerStops
from app.ids import RequestId
from app.messages.events import Delta


class KeptStream(EventStream):
    """A kept answer's stream: each event has an id, after which it can be resumed. Deltas are not merged."""

    _ids = True
    _seen = 0

    def __init__(
        self,
        begin: Callable[[], Awaitable[Generation | Replay]],
        writer: Callable[[GenerationBase], StreamWriter],
        on_leave: Callable[[RequestId], Awaitable[None]] | None,
    ) -> None:
        """`on_leave`: called when its reader has left; None: the answer goes on."""
        super().__init__(begin, writer)
        self._left = on_leave

    async def _run(self, sse: Sse, receive: Receive) -> None:
        """Ends when its reader leaves, or the server stops: without an end of the answer, if that goes on elsewhere."""
        try:
            await until_client_left(super()._run(sse, receive), receive)
        except (Cancelled, ServerStops) as exc:
            if self._left is not None:
                await self._left(self._call.id)
            elif isinstance(exc, ServerStops):
                await sse.end()
                return
            raise

    async def _write(self, deltas: list[tuple[int, Delta]], sse: Sse) -> None:
        body = b"" if self._call.skip else self._writer.opening(self._call.choices)
        while deltas:
            await sse.write(body + b"".join([self._chunk(choice, d) for choice, d in deltas]))
            body = b""
            deltas = await self._call.deltas()
        await self._writer.settle()
        await sse.end(self._writer.last())

    def _chunk(self, choice: int, d: Delta) -> bytes:
        chunk = super()._chunk(choice, d)
        self._seen += 1
        if self._seen <= self._call.skip or not chunk:
            return b""
        at = chunk.rfind(b"\n\n", 0, -2) + 2 if chunk.count(b"\n\n") > 1 else 0  # of a delta's events, the last has it
        return b"%bid: %b:%d\n%b" % (chunk[:at], self._call.id.encode(), self._seen, chunk[at:])
