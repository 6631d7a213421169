"""Counts in Redis the processes that ended while they handled something, so that nothing ends them for ever.

What is to be handled (a part of a batch, an answer to adopt, an erasure) is counted before it begins, and the count
goes when it is over: what is left was handled by a process that died. Such a suspect begins while no other one of this
process is just beginning, so that the next death shows which of them it was.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from app.errors import StoreDown
from app.keys import Keys
from app.store.refusal import StoreFull
from app.store.wire import Wire
from app.telemetry import logger

log = logger(__name__)

_LIFE_S = 86_400  # of a count, after the last time
_BEGINNING_S = 10.0  # after which the next suspect may begin, whatever the last one does
# What a death counts for: of a process in which it had just begun, and of one in which it had proved harmless so far.
_EARLY, _LATE = 3, 1


class Handled:
    """One thing, while this process handles it."""

    def __init__(self, deaths: int, prove: Callable[[], Awaitable[None]]) -> None:
        self.deaths = deaths  # of processes that handled it before
        self.done = False  # set when nobody has to handle it again
        self._prove: Callable[[], Awaitable[None]] | None = prove

    async def proved(self) -> None:
        """Notes that it has begun well: if the process dies from now on, it is a less likely cause."""
        prove, self._prove = self._prove, None
        if prove is not None:
            await prove()


class SuspectTurn:
    """The right of a suspect to begin, for some seconds at most."""

    def __init__(self, suspects: asyncio.Lock) -> None:
        """`suspects`: acquired for it."""
        self._suspects, self.is_over = suspects, False
        self._timer = asyncio.get_running_loop().call_later(_BEGINNING_S, self.over)

    def over(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._timer.cancel()
            self._suspects.release()


class Handling:
    """The counter of what this process handles. Lives on one event loop."""

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys
        self._suspects = asyncio.Lock()

    @asynccontextmanager
    async def of(self, what: str, *, alone: bool = False) -> AsyncIterator[Handled]:
        """Counts `what`, which one process handles at a time. `alone`: the caller begins one suspect after the other.

        Raises: StoreDown, before it has begun.
        """
        before, turn = await self._begin(what), None
        if before >= _EARLY and not alone:
            await self._set(what, before)  # it hasn't begun yet
            await self._suspects.acquire()
            turn = SuspectTurn(self._suspects)

        async def proved() -> None:
            if turn is not None:
                turn.over()
            with suppress(StoreDown):  # then its death would count for more
                await self._set(what, before + _LATE)

        try:
            if turn is not None:
                before = await self._begin(what)
            item = Handled(before // _EARLY, proved)
            try:
                yield item
            finally:
                with suppress(StoreDown):  # then this counts, for a day
                    await self._set(what, 0 if item.done else before)
        finally:
            if turn is not None:
                turn.over()

    async def _begin(self, what: str) -> int:
        """Returns what it had counted before."""
        name = self._keys.handling(what)
        count, _ = await self._wire.execute_each([("INCRBY", name, _EARLY), ("EXPIRE", name, _LIFE_S)])
        if isinstance(count, StoreFull):
            raise count
        if isinstance(count, StoreDown):  # it is no number: a hand or another version wrote it
            log.error("count_not_understood", of=what, error=count.message)
            await self._set(what, _EARLY)
            return 0
        return int(count) - _EARLY

    async def _set(self, what: str, count: int) -> None:
        name = self._keys.handling(what)
        await self._wire.execute([("SET", name, count, "EX", _LIFE_S) if count else ("UNLINK", name)])
