"""The streamed response: batches of deltas in, one write of SSE events out."""

from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.direct_writer import DirectWriter
from app.api.http.error_shape import error_event
from app.api.http.sse import Sse, shown_error
from app.api.resumable.replay import Replay
from app.dispatch.answering.generation import Generation
from app.dispatch.generation_base import GenerationBase
from app.endpoint_registry import StreamWriter
from app.messages.deltas import merge
from app.messages.events import Delta


class EventStream(Response):
    """Runs a call and streams it. Not Starlette's StreamingResponse: no task group and no generator per token.

    An error before the first token has its status code, unless `Sse` has sent the headers meanwhile.
    """

    _ids = False  # whether events have ids
    _call: Generation | Replay
    _writer: StreamWriter

    def __init__(
        self,
        begin: Callable[[], Awaitable[Generation | Replay]],
        writer: Callable[[GenerationBase], StreamWriter],
    ) -> None:
        self.status_code, self.background = 200, None
        self._begin, self._writer_of = begin, writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with Sse(scope, send, ids=self._ids) as sse:
            try:
                await self._answer(sse, receive)
            except Exception as exc:
                if not sse.started:
                    raise
                await sse.end(error_event(shown_error(exc, scope), scope))

    async def _answer(self, sse: Sse, receive: Receive) -> None:
        self._call = await self._begin()
        self._writer = self._writer_of(self._call)
        sse.headers = self._call.headers
        await self._run(sse, receive)

    async def _run(self, sse: Sse, _receive: Receive) -> None:
        async with self._call as call:
            deltas = await call.deltas()
            await sse.start()
            await self._write(deltas, sse)

    async def _write(self, deltas: list[tuple[int, Delta]], sse: Sse) -> None:
        call, direct = self._call, sse.direct
        assert isinstance(call, Generation)
        body = self._writer.opening(call.choices)
        while deltas:
            body += b"".join([self._chunk(choice, d) for choice, d in deltas])
            if direct is not None and call.plan.echo is None and not call.is_inspected:
                call.answer.divert(self._sink(direct))
                direct = None
            waiting = call.answer.pending()
            await sse.write(body)
            body = b""
            held_up = call.answer.pending() > waiting
            deltas = await call.deltas()
            if held_up:  # the client is behind: merge the deltas that came meanwhile
                pairs = merge(((choice, d.weights), d) for choice, d in deltas)
                deltas = [(choice, d) for (choice, _weights), d in pairs]
        await self._writer.settle()
        await sse.end(self._writer.last())

    def _sink(self, direct: DirectWriter) -> Callable[[Delta], bool]:
        """Writes a delta as soon as it comes, if the client keeps up. Called once per token."""
        call, chunk, ready, write = self._call, self._writer.delta, direct.ready, direct.write
        assert isinstance(call, Generation)
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
        return self._writer.delta(choice, d)
