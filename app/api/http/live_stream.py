"""A stream of events without an end: what something looks like now, and again whenever it has changed.

Streams of one client that show the same share a look at it, so that many cost hardly more than one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from app.api.http.error_shape import error_event
from app.api.http.sse import shown_error
from app.api.http.uvicorn_protocol import DirectProtocol
from app.errors import RateLimited

_EVERY_S = 1.0
_EVERY_S_PER_BYTE = 1e-7  # of all that a client is shown: a megabyte takes 10 ms, which is a tenth of the time then
_EARLY_S = 0.1  # by which streams that share a look may come before it is due
_MOST = 32  # streams of one client
_ENDING_S = 2.0  # a stream's at most, when the server stops; then it is cut
_FULL_S = 10  # when to try again: nobody knows when a stream ends
# For the document: what an endpoint answers to a client that `events_wanted`.
AS_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}

Look = Callable[[], Awaitable[object]]


class _Shared:
    """The event that some streams show."""

    def __init__(self) -> None:
        self.streams = 0
        self.event = b""
        self.due = 0.0  # monotonic
        self.looking = asyncio.Lock()


class LiveLooks:
    """The events that the streams of this process show, by client."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._clients: dict[Hashable, dict[Hashable, _Shared]] = {}

    @contextmanager
    def opened(self, client: Hashable, what: Hashable, look: Look) -> Iterator[Callable[[], Awaitable[bytes]]]:
        """One more stream that shows `what` to `client`, while it is entered; returns what gives its present event.

        Raises: RateLimited if the client has too many.
        """
        shared_events = self._clients.setdefault(client, {})
        if sum(one.streams for one in shared_events.values()) >= _MOST:
            raise RateLimited(
                f"{_MOST} event streams of yours are open already. Close one, or try again later.",
                retry_after_s=_FULL_S,
            )
        mine = shared_events.setdefault(what, _Shared())
        mine.streams += 1

        async def event() -> bytes:
            async with mine.looking:
                if self._now() >= mine.due:
                    mine.event = b"data: %b\n\n" % orjson.dumps(await look())
                    mine.due = self._now() + _pause_s(shared_events.values()) - _EARLY_S
            return mine.event

        try:
            yield event
        finally:
            mine.streams -= 1
            if not mine.streams:
                del shared_events[what]
            if not shared_events:
                del self._clients[client]


def _pause_s(events: Iterable[_Shared]) -> float:
    """Seconds until the next look at one of the events that a client is shown."""
    return max(_EVERY_S, _EVERY_S_PER_BYTE * sum(len(one.event) for one in events))


async def _anybody() -> None:
    """Every client may go on."""


def _comment() -> ServerSentEvent:
    return ServerSentEvent(comment="waiting", sep="\n")


class LiveStream(EventSourceResponse):
    """Ends when the client leaves or the server stops. An error before the first event has its status code."""

    ping_s: ClassVar[float] = 10.0  # between two comments

    def __init__(
        self,
        looks: LiveLooks,
        client: Hashable,
        what: Hashable,
        look: Look,
        check: Callable[[], Awaitable[None]] = _anybody,
    ) -> None:
        """`look`: what goes into an event, as orjson takes it; the same for all streams of `what` that `client` has.

        `check`: whether this stream may go on. Both raise XylemError, which ends the stream.
        """
        super().__init__(
            self._events(), ping=self.ping_s, ping_message_factory=_comment, shutdown_grace_period=_ENDING_S
        )
        self._looks, self._of, self._check = looks, (client, what, look), check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        with self._looks.opened(*self._of) as self._event:
            await self._check()
            await self._event()
            await super().__call__(scope, receive, send)

    async def _events(self) -> AsyncIterator[bytes]:
        last_event, stopping = b"", asyncio.create_task(DirectProtocol.stopping.wait())
        try:
            while not stopping.done():
                await self._check()
                now = await self._event()
                if now != last_event:
                    yield now
                last_event = now
                await asyncio.wait([stopping], timeout=_EVERY_S)
        except Exception as exc:  # noqa: BLE001 (the client has the headers already, and gets it as an event)
            yield error_event(shown_error(exc, self._scope), self._scope)
        finally:
            stopping.cancel()
