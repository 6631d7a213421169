"""Writes records of usage into a stream in Redis. While Redis is away they wait here."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from app.errors import StoreDown
from app.keys import Keys
from app.messages.wire import encode
from app.running.loops import keep
from app.store import Command, Wire
from app.telemetry import USAGE_LOST, logger
from app.usage.record import UsageRecord

log = logger(__name__)

STREAM_ENTRIES = 250_000  # about 75 MB in Redis, if nobody writes them to SQL
_MOST_WAITING = 50_000  # records, while Redis is away; more are dropped, logged and counted
_IN_ONE_ENTRY = 100
_EVERY_S = 0.25
_STORE_S = 1.0  # the longest that an answer's end waits for its record to be in Redis
_REPEAT_S = 3.0  # Redis that dies, or fails over, may lose what it has confirmed so long before
_CLOSE_S = 2.0


class UsageOutbox:
    """An outbox of records for the stream, on the event loop.

    A record may get into the stream twice, which its reader notices by the id.
    """

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._stream = wire, keys.usage()
        self._waiting: list[UsageRecord] = []
        self._confirmed: deque[tuple[float, UsageRecord]] = deque()  # monotonic
        self._connected = wire.reconnected
        self._away = False  # nobody waits for Redis, then
        self._dropped = 0  # not logged yet

    async def store(self, record: UsageRecord, *beside: Command) -> list[Any]:
        """Returns when the record is in Redis; or soon, if Redis is away.

        `beside`: commands that are sent with it, since a send takes more CPU than either. Returns their replies; none
        if Redis is away: then nobody knows whether they were executed.
        """
        if self._away:
            self.add(record)
            return []
        try:
            async with asyncio.timeout(_STORE_S):
                return await self._write([record], beside)
        except (StoreDown, TimeoutError):
            self._away = True
            self.add(record)
            return []
        except BaseException:  # the request is cancelled, and has used what it has used
            self.add(record)
            raise

    def add(self, record: UsageRecord) -> None:
        """The record will be in Redis within a moment."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(record)
        else:
            self._dropped += 1
            USAGE_LOST.inc()

    async def run(self) -> None:
        """Writes what waits, until cancelled."""
        await keep("usage_waits", self._turn, _EVERY_S, later=True)

    async def _turn(self) -> None:
        """Raises: StoreDown."""
        if self._dropped:
            log.error("usage_lost", records=self._dropped)
            self._dropped = 0
        self._repeat()
        try:
            await self._write_waiting()
        except StoreDown:
            self._away = True
            raise

    async def close(self) -> None:
        """Writes what waits still, if Redis lets it."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._write_waiting()
        except (StoreDown, TimeoutError):
            log.error("usage_lost", records=len(self._waiting))

    def _repeat(self) -> None:
        """Lets records that were confirmed just before a reconnection wait again."""
        if self._wire.reconnected != self._connected:
            self._connected = self._wire.reconnected
            self._waiting += [record for _, record in self._confirmed]
            self._confirmed.clear()

    async def _write_waiting(self) -> None:
        """Raises: StoreDown."""
        while self._waiting:
            part = self._waiting[:_IN_ONE_ENTRY]
            await self._write(part)
            del self._waiting[: len(part)]
        self._away = False

    async def _write(self, records: list[UsageRecord], beside: Sequence[Command] = ()) -> list[Any]:
        """Returns the replies of commands `beside`. Raises: StoreDown."""
        command: Command = ("XADD", self._stream, "MAXLEN", "~", STREAM_ENTRIES, "*", "b", encode(records))
        _entry, *replies = await self._wire.execute([command, *beside])
        self._repeat()
        now, confirmations = time.monotonic(), self._confirmed
        while confirmations and confirmations[0][0] < now - _REPEAT_S:  # the same Redis still answers
            confirmations.popleft()
        confirmations.extend([(now, record) for record in records])
        return replies
