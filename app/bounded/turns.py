"""Gives turns where more wait than may go on at once: to each client in turn, however many it has."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from app.errors import Saturated

# For whom the current task works: a tenant, or a key without one. Whoever checks a client sets it.
CLIENT: ContextVar[str] = ContextVar("client", default="")
_MOST_WAITING = 1024  # of one client
_WHAT = "pictures, sounds, grammars or chat templates"


class Turns:
    """A semaphore of one event loop. Of several clients that wait, each gets every so many'th turn."""

    def __init__(
        self,
        at_once: int,
        most_waiting: int = _MOST_WAITING,
        what: str = "pictures, sounds, grammars or chat templates",
    ) -> None:
        """`what`: of which too many wait, for the client."""
        self._free, self._most, self._what = at_once, most_waiting, what
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # the next client's first

    async def take(self, client: str) -> None:
        """Waits for a turn, which `end` ends. Raises: Saturated if the client has too many waiting."""
        if self._free:
            self._free -= 1
            return
        line = self._lines.setdefault(client, deque())
        if len(line) >= self._most:
            raise Saturated(f"Too many {self._what} of yours wait already. Try again later.")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same moment
                self.end()
            elif turn in line:  # else `end` has just passed over it
                line.remove(turn)
                if not line:
                    del self._lines[client]
            raise

    @asynccontextmanager
    async def turn(self, within_s: float | None = None) -> AsyncIterator[None]:
        """A turn of the current client. Raises: Saturated, also if it does not come within so long."""
        try:
            async with asyncio.timeout(within_s):
                await self.take(CLIENT.get())
        except TimeoutError:
            raise Saturated(f"Too many {self._what} wait. Try again later.") from None
        try:
            yield
        finally:
            self.end()

    async def turn_of_loop(self) -> None:
        """Returns in a turn that lasts as long as this turn of the event loop does. Raises: Saturated."""
        await self.take(CLIENT.get())
        asyncio.get_running_loop().call_soon(self.end)

    def end(self) -> None:
        while self._lines:
            client, line = self._lines.popitem(last=False)
            turn = line.popleft()
            if line:
                self._lines[client] = line
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
