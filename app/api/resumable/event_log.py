"""The log of a kept answer, followed from its beginning: where it is made, or where another API replica writes it."""

import asyncio

from app.api.resumable.owner import AnswerOwner
from app.api.resumable.store import ResumableStore
from app.errors import DeadlineOver, StoreDown
from app.messages import Done, Event, Failed, KeptRequest
from app.store import clock

_RETRY_S = 0.2
_LATE_S = 60.0  # behind the deadline: its owner would have said so, and Redis has lost both
_MOST = 128  # events at once: with all logprobs there may be, more of them would hold the event loop
_POLL_S = 0.05  # how often the log is looked at where another replica writes it


class EventLog:
    """One reader's."""

    def __init__(self, resumable_store: ResumableStore, answer_owner: AnswerOwner, kept: KeptRequest) -> None:
        self._resumable_store, self._answer_owner, self._kept = resumable_store, answer_owner, kept
        self._read, self._over = 0, False
        self._events: list[Event] = []  # that have been read, and are not given out

    async def batch(self) -> list[Event]:
        """The next events; none when all have been read. Raises: StoreDown, DeadlineOver."""
        if self._events:
            await asyncio.sleep(0)
        else:
            self._events = await self._page()
        events, self._events = self._events[:_MOST], self._events[_MOST:]
        return events

    async def _page(self) -> list[Event]:
        while not self._over:
            wrote = self._answer_owner.wrote(self._kept.id)
            wrote.clear()
            try:
                pages = await self._resumable_store.read(self._kept.id, self._read)
            except StoreDown:  # the answer goes on meanwhile
                if clock.now() > self._kept.deadline:
                    raise
                await asyncio.sleep(_RETRY_S)
                continue
            self._read += len(pages)
            events = [event for page in pages for event in page]
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
