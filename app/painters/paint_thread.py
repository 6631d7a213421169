"""The thread of a painter whose model is called: one picture after the other, or several together."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable, Hashable
from itertools import count
from threading import Condition, Thread
from typing import Any

from app.errors import EngineFailed, XylemError
from app.painters.base import PaintRequest, PaintStep


class Ticket:
    """A request on its way through the thread."""

    def __init__(self, request: PaintRequest) -> None:
        self.request = request
        self.stopped = False  # nobody wants it any more: set by the loop, read by the thread at each step
        self.made: asyncio.Queue[PaintStep | XylemError | Any] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def put(self, result: Any) -> None:
        """Passes on what comes from the thread: a step, an error, or at last what the model has made."""
        self._loop.call_soon_threadsafe(self.made.put_nowait, result)


_Entry = tuple[int, int, Ticket]  # priority, number: the least is next

# Paints these together, and puts everything into the tickets. It may return early when all are stopped.
Work = Callable[[list[Ticket]], None]


class PaintThread(Thread):
    def __init__(
        self,
        work: Work,
        shape: Callable[[PaintRequest], Hashable] = lambda request: request.id,
        most: int = 1,
        together: Callable[[list[PaintRequest]], int] = len,
    ) -> None:
        """Up to `most` requests of one `shape` are painted together.

        `together`: called in the thread, says how many of these, the first ones, really are.
        """
        super().__init__(name="painter", daemon=True)
        self._work, self._shape, self._most, self._together = work, shape, most, together
        self._waiting: list[_Entry] = []  # a heap
        self._numbers, self._changed = count(), Condition()
        self._closed = False
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def paint(self, request: PaintRequest) -> AsyncGenerator[Any, None]:
        """Yields what `Work` puts in; closing it stops the request. Raises: the error that is put in, EngineFailed."""
        ticket = Ticket(request)
        with self._changed:
            if self._closed:
                raise EngineFailed("The engine is closed.")
            heapq.heappush(self._waiting, (request.priority, next(self._numbers), ticket))
            self._changed.notify()
        try:
            while True:
                output = await ticket.made.get()
                if isinstance(output, XylemError):
                    raise output
                yield output
                if not isinstance(output, PaintStep):
                    return
        finally:
            ticket.stopped = True

    def close(self) -> None:
        """Ends all requests; returns when the thread has ended, within a step."""
        with self._changed:
            self._closed = True
            for *_, ticket in self._waiting:
                ticket.put(EngineFailed("The engine is closed."))
            self._waiting.clear()
            self._changed.notify()
        self.join()

    @property
    def closed(self) -> bool:
        return self._closed

    def run(self) -> None:
        while entries := self._next():
            tickets = [ticket for *_, ticket in entries]
            self.running = len(tickets)
            error: XylemError | None
            try:
                if len(tickets) > 1:
                    fit = self._together([ticket.request for ticket in tickets])
                    self._put_back(entries[fit:])
                    tickets = tickets[:fit]
                    self.running = fit
                self._work(tickets)
                error = EngineFailed("The engine is closed.") if self._closed else None
            except XylemError as exc:
                error = exc
            except Exception as exc:  # noqa: BLE001 (the model's own; its text may quote a prompt)
                error = EngineFailed(f"The engine failed ({type(exc).__name__}).")
            if error is not None:
                for ticket in tickets:
                    ticket.put(error)
            self.running = 0

    def _put_back(self, entries: list[_Entry]) -> None:
        with self._changed:
            self._waiting = sorted(self._waiting + entries)

    def _next(self) -> list[_Entry]:
        """The most urgent request, and others of its shape; none when the thread is to end."""
        with self._changed:
            while not self._closed:
                entries = [entry for entry in sorted(self._waiting) if not entry[2].stopped]
                if not entries:
                    self._waiting.clear()
                    self._changed.wait()
                    continue
                shape = self._shape(entries[0][2].request)
                batch = [entry for entry in entries if self._shape(entry[2].request) == shape][: self._most]
                self._waiting = [entry for entry in entries if entry not in batch]
                return batch
            return []
