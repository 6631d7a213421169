"""Whose turn it is, where more wait than may go on at once: each client's in turn, however many it has."""

import asyncio
from collections import OrderedDict, deque
from contextvars import ContextVar

from app.errors import Saturated

# For whom the current task works: a tenant, or a key without one. Whoever checks a client sets it.
CLIENT: ContextVar[str] = ContextVar("client", default="")
_MOST_WAITING = 1024  # of one client


class Turns:
    """A semaphore of one event loop. Of several clients that wait, each gets every so many'th turn."""

    def __init__(self, at_once: int, most_waiting: int = _MOST_WAITING) -> None:
        self._free, self._most = at_once, most_waiting
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # the next client's first

    async def take(self, client: str) -> None:
        """Waits for a turn, which `end` ends. Raises: Saturated if the client has too many waiting."""
        if self._free:
            self._free -= 1
            return
        line = self._lines.setdefault(client, deque())
        if len(line) >= self._most:
            what = "pictures, sounds, grammars or chat templates"
            raise Saturated(f"Too many {what} of yours wait already. Try again later.")
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
