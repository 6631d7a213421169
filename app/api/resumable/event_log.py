"""A reader of a kept answer's log, from its beginning, whichever API replica writes it."""

import asyncio
from collections.abc import Callable

from app.api.resumable.owner import AnswerOwner
from app.api.resumable.store import ResumableStore
from app.errors import DeadlineOver, KeptFull, StoreDown
from app.messages.events import Done, Event, Failed, decode_events
from app.messages.kept import KeptRequest
from app.store import clock

_RETRY_S = 0.2
_LATE_S = 60.0  # after the deadline: an owner would have ended the log, so Redis has lost it
_MOST = 16  # events at once: with the most logprobs, more of them would hold up the event loop
_FEW = 4  # batches: an answer that is being made has no more at a time
_POLL_S = 0.05  # how often the log is looked at where another replica writes it


class EventLog:
    """One reader's position in a log."""

    def __init__(self, resumable_store: ResumableStore, answer_owner: AnswerOwner, kept_request: KeptRequest) -> None:
        self._store, self._answer_owner, self._kept = resumable_store, answer_owner, kept_request
        self._run = answer_owner.running(kept_request.id)
        self._read, self._over = 0, False
        self._events: list[Event] = []  # read from Redis, and not returned yet

    async def batch(self) -> list[Event]:
        """The next events; none when all have been read. Raises: StoreDown, DeadlineOver."""
        if self._events:
            await self._store.backlogs.turn_of_loop()
        else:
            self._events = await self._page()
        events, self._events = self._events[:_MOST], self._events[_MOST:]
        return events

    async def apart(self, write: Callable[[], bytes]) -> bytes:
        """The result of what takes long, in a thread. Of all readers, one at a time."""
        async with self._store.backlogs.turn():
            return await asyncio.to_thread(write)

    async def _page(self) -> list[Event]:
        while not self._over:
            wrote = self._answer_owner.wrote(self._kept.id)
            wrote.clear()
            try:
                events, pages = await self._next()
            except StoreDown:  # the answer continues meanwhile
                if clock.now() > self._kept.deadline:
                    raise
                await asyncio.sleep(_RETRY_S)
                continue
            if _says_full(events) and self._goes_on_here():
                events = []  # `_next` has them at the next look
            else:
                self._read += pages
            if events:
                self._over = isinstance(events[-1], Done | Failed)
                return events
            if clock.now() > self._kept.deadline + _LATE_S:
                raise DeadlineOver
            try:
                async with asyncio.timeout(_POLL_S):
                    await wrote.wait()
            except TimeoutError:
                pass
        return []

    async def _next(self) -> tuple[list[Event], int]:
        """The next events, and the number of batches that they are. Raises: StoreDown."""
        if self._run is None or self._run.unkept is None:
            pages = await self._store.page(self._kept.id, self._read)
        else:
            pages = self._run.unkept[self._read : self._read + _MOST]
        if len(pages) > _FEW:  # what was made before: it is decoded, and written by the caller, in this turn
            await self._store.backlogs.turn_of_loop()
        return [event for page in pages for event in decode_events(page)], len(pages)

    def _goes_on_here(self) -> bool:
        return self._run is not None and (self._run.unkept is not None or not self._run.task.done())


def _says_full(events: list[Event]) -> bool:
    return bool(events) and isinstance(end := events[-1], Failed) and end.code == KeptFull.code
