"""The prefix index, for API replicas. It may be on a server or node of its own, whose absence stops nothing."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from app.errors import StoreDown
from app.store import Command, Wire
from app.telemetry import logger

log = logger(__name__)

_PATIENCE_S = 0.25  # of a round of placement, for a server that hangs
_AWAY_S = 1.0  # for so long it isn't asked again


class IndexReader:
    def __init__(self, wire: Wire, main: Wire) -> None:
        """`main`: of the Redis that has all else; the same where the index has no server of its own."""
        self.wire, self.is_apart = wire, wire is not main or wire.is_cluster  # another node of which may be away
        self._asked_again = 0.0  # monotonic

    async def ask(self, commands: Sequence[Command]) -> list[Any] | None:
        """The replies of a server apart; None while it is away."""
        now = time.monotonic()
        if not commands or now < self._asked_again:
            return None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self.wire.execute(commands)
        except (StoreDown, TimeoutError) as exc:
            self._asked_again = time.monotonic() + _AWAY_S
            log.warning("index_away", error=repr(exc), reason="requests are placed as if nothing were cached")
            return None
