"""Makes reports beside all that requests need: a few at a time, and one after the other for each client."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from app.errors import RateLimited

T = TypeVar("T")

_AT_ONCE = 2
_WAITING = 4  # of one client, the running one included

_threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="usage-reports")


class Reports:
    def __init__(self) -> None:
        self._asked: dict[str, int] = defaultdict(int)
        self._turns: dict[str, asyncio.Lock] = {}

    async def made(self, owner: str, work: Callable[[], T]) -> T:
        """The result of `work`, when the owner's others are done. Raises: RateLimited, and what `work` raises."""
        if self._asked[owner] >= _WAITING:
            raise RateLimited(
                f"This client has {_WAITING} reports in progress. Try again when one is done.", retry_after_s=1
            )
        self._asked[owner] += 1
        turn = self._turns.setdefault(owner, asyncio.Lock())
        try:
            async with turn:
                return await asyncio.get_running_loop().run_in_executor(_threads, work)
        finally:
            self._asked[owner] -= 1
            if not self._asked[owner]:
                del self._asked[owner], self._turns[owner]


REPORTS = Reports()
