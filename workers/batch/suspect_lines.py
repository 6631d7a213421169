"""Finds the line of a part that ends batch workers: lines are begun one after the other, each counted by itself."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from app.batch.handling_names import of_line
from app.ids import BatchId
from app.store.handling import Handled, Handling

CUT = 2  # batch workers that died with a part, or a batch, after which its lines are begun one after the other
MOST_LETHAL = 3  # lines of a batch that ended batch workers; then its parts that did are given up as a whole
GIVEN_UP = "Batch workers died each time they began this line. It is not tried again."
_BEGINNING_S = 10.0  # for which the next line waits at most


class SuspectLines:
    """Notes which lines of a part have begun well; on the worker's event loop."""

    def __init__(self, handling: Handling, batch: BatchId) -> None:
        self._handling, self._batch = handling, batch
        self._part: Handled | None = None
        self._unread: set[int] = set()
        # Of lines that are begun one after the other. `_read` is set when one has begun well, or has ended.
        self._read: dict[int, asyncio.Event] = {}
        self._handled: dict[int, Handled] = {}

    def begin(self, part: Handled, lines: Iterable[int]) -> None:
        """`part` begins; `lines` are the numbers of those without a result."""
        self._part, self._unread = part, set(lines)

    def is_alone(self, line: int) -> bool:
        """Whether it is begun after the one before."""
        return line in self._read

    @asynccontextmanager
    async def alone(self, line: int) -> AsyncIterator[Handled]:
        """Counts the line while it is answered. Raises: StoreDown, before it has begun."""
        read = self._read.setdefault(line, asyncio.Event())
        try:
            async with self._handling.of(of_line(self._batch, line), alone=True) as handling:
                self._handled[line] = handling
                yield handling
        finally:
            read.set()

    async def begun(self, line: int) -> None:
        """Waits until the line has begun well or ended, or is no danger."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_BEGINNING_S):
                await self._read.setdefault(line, asyncio.Event()).wait()

    async def read(self, line: int) -> None:
        """The line is understood, or refused: it has done no harm; nor has the part, when all its lines are."""
        self._unread.discard(line)
        if line in self._handled:
            await self._handled[line].proved()
            self._read[line].set()
        if not self._unread and self._part is not None:
            await self._part.proved()
