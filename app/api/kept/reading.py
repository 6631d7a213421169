"""A kept answer as it is read: it looks like the `Call` that makes it, and comes from the log."""

import asyncio
import time
from types import TracebackType
from typing import Self

from app.api.account import Account
from app.api.kept.keeper import Keeper
from app.api.kept.shelf import Found, Shelf
from app.api.plan import Plan
from app.errors import DeadlineOver, StoreDown, XylemError, from_wire
from app.messages import Delta, Done, Event, Failed

_RETRY_S = 0.2
_LATE_S = 30.0  # behind its deadline, after which nobody writes the end of an answer any more
_POLL_S = 0.05  # how often the log is looked at where another replica writes it


class Reading(Account):
    """From the beginning, whatever the reader has seen before: `skip` deltas are counted, and not shown."""

    edited = True  # its deltas come through `deltas`

    def __init__(self, shelf: Shelf, keeper: Keeper, plan: Plan, found: Found, skip: int = 0) -> None:
        super().__init__(found.kept.id, found.kept.created, plan)
        self._shelf, self._keeper, self._read, self._over = shelf, keeper, 0, False
        self._deadline = found.kept.deadline
        self.skip = skip

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """The answer goes on without this reader."""

    async def batch(self) -> list[Event]:
        """The next events; none when all have been read. Raises: StoreDown, DeadlineOver."""
        while not self._over:
            wrote = self._keeper.wrote(self.id)
            wrote.clear()
            try:
                pages = await self._shelf.read(self.id, self._read)
            except StoreDown:  # the answer goes on meanwhile
                if time.time() > self._deadline:
                    raise
                await asyncio.sleep(_RETRY_S)
                continue
            self._read += len(pages)
            events = [event for page in pages for event in page]
            if events:
                self._over = isinstance(events[-1], Done | Failed)
                return events
            if time.time() > self._deadline + _LATE_S:
                raise DeadlineOver
            try:
                async with asyncio.timeout(_POLL_S):
                    await wrote.wait()
            except TimeoutError:
                pass
        return []

    async def deltas(self) -> list[tuple[int, Delta]]:
        """As Call's. Raises: the error that ended the answer; StoreDown."""
        out: list[tuple[int, Delta]] = []
        while not out and (events := await self.batch()):
            for event in events:
                if isinstance(event, Delta):
                    out.append((event.index, event))
                elif isinstance(event, Done):
                    self.cached_tokens += event.cached_tokens
                elif isinstance(event, Failed):
                    if out:  # first what came before it
                        self._read, self._over = self._read - 1, False
                        return out
                    raise from_wire(event.code, event.message)
        return out

    def headers(self) -> dict[str, str]:
        return {"x-xylem-kept": self.id}

    def failed(self, exc: XylemError) -> None:
        """Counted where the answer is made."""
