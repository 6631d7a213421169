"""One HTTP request's answer as it arrives: the dispatcher adds events, the handler takes them."""

import asyncio
from collections.abc import Callable

from app.errors import XylemError
from app.messages.deltas import merge_events
from app.messages.events import Delta, Event, Failed
from app.telemetry import logger

log = logger(__name__)
_MOST = 1024  # waiting events; beyond it, deltas are merged into fewer and larger ones for the slow reader


class EventQueue:
    """Events of all prompts of one HTTP request, in order. Lives on the API's event loop; one reader."""

    __slots__ = ("_end", "_most", "_pending", "_sink", "_waiter")

    def __init__(self) -> None:
        self._pending: list[Event] = []
        self._most = _MOST
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Callable[[Delta], bool] | None = None
        self._end: XylemError | None = None

    def push(self, event: Event) -> None:
        # While the reader waits, all earlier events have been written: the sink may write this one at once.
        if self._waiter is not None and self._sink is not None and type(event) is Delta:
            try:
                if self._sink(event):
                    return
            except Exception as exc:  # noqa: BLE001 (a writer's failure ends its own answer only)
                log.error("answer_not_written", request=event.request, error=type(exc).__name__)
                self._sink = None
                event = Failed(event.request, event.attempt, XylemError.code, XylemError().message)
        self._pending.append(event)
        if len(self._pending) > self._most:
            self._pending = merge_events(self._pending)
            self._most = max(_MOST, 2 * len(self._pending))
        self._wake()

    def divert(self, sink: Callable[[Delta], bool] | None) -> None:
        """Gives `sink`, from now on, each delta that arrives while the reader waits.

        If it returns False, the reader gets the delta. None: the reader gets all.
        """
        self._sink = sink

    def end(self, exc: XylemError) -> None:
        """Nobody takes more of the answer: `take` raises this."""
        self._end = exc
        self._wake()

    def pending(self) -> int:
        return len(self._pending)

    async def take(self) -> list[Event]:
        """The events since the last call, at least one. Raises: what `end` was called with."""
        if not self._pending and self._end is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._end is not None:
            raise self._end
        events, self._pending = self._pending, []
        return events

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
