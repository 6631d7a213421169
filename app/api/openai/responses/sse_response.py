"""The streamed response of the Responses API."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from msgspec import Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.disconnect import until_client_left
from app.api.http.sse import Sse, shown_error
from app.api.resumable.event_log import EventLog
from app.bounded.held_bytes import HeldBytes, RequestBytes
from app.errors import Cancelled, ServerStops, from_wire
from app.messages.events import Failed
from app.openai.responses.live_source import LiveSource
from app.openai.responses.sse_events import ResponseEvents, error_alone


class Followed(Struct):
    """A response, and the events for one reader."""

    source: EventLog | LiveSource
    events: ResponseEvents
    headers: Callable[[], Mapping[str, str]] = dict
    left: Callable[[], Awaitable[None]] | None = None  # called when the reader has left; None: the response goes on
    held: HeldBytes | None = None  # counts what the reader holds; None: its request was charged for


class ResponseStream(Response):
    def __init__(self, begin: Callable[[], Awaitable[Followed]], *, at_once: bool) -> None:
        """`at_once`: its first events are sent at once. Else an error before any output becomes an HTTP error."""
        self.status_code, self.background = 200, None
        self._begin, self._at_once = begin, at_once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error_event = error_alone
        with Sse(scope, send, ids=True) as sse:
            try:
                answer = await self._begin()
                error_event = answer.events.error
                sse.headers, sse.opening = answer.headers, answer.events.opening
                if sse.started:
                    await sse.write(sse.opening())
                await self._follow(answer, sse, receive)
            except Exception as exc:
                if not sse.started:
                    raise
                await sse.end(error_event(shown_error(exc, scope)))

    async def _follow(self, stream: Followed, sse: Sse, receive: Receive) -> None:
        if stream.held is not None:
            with stream.held.growing() as share:
                await self._while_there(stream, sse, receive, share)
        else:
            await self._while_there(stream, sse, receive)

    async def _while_there(
        self, stream: Followed, sse: Sse, receive: Receive, bytes_held: RequestBytes | None = None
    ) -> None:
        if isinstance(stream.source, LiveSource):  # its generation watches the client itself
            async with stream.source.call:
                await self._run(stream, sse)
            return
        try:
            await until_client_left(self._run(stream, sse, bytes_held), receive)
        except Cancelled:
            if stream.left is not None:
                await stream.left()
        except ServerStops:
            if stream.left is not None:
                await stream.left()
                raise
            await sse.end()  # the response goes on elsewhere, and its stream can be resumed

    async def _run(self, stream: Followed, sse: Sse, bytes_held: RequestBytes | None = None) -> None:
        source, events = stream.source, stream.events
        if self._at_once:
            await sse.start()
        batch = await source.batch()
        if not sse.started and isinstance(batch[0], Failed) and batch[0].code != Cancelled.code:
            raise from_wire(batch[0].code, batch[0].message, batch[0].param)
        await sse.start()
        while batch:
            write = partial(events.write, batch)
            data = await source.apart(write) if events.is_long(batch) else write()
            if bytes_held is not None:
                bytes_held.grow(len(data))  # as much, about, as its response has grown
            await sse.write(data)
            batch = await source.batch()
        await sse.end()
