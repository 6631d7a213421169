"""The one subscription of this process: receives event batches, and delivers their events.

A batch lost by pub/sub is noticed by its worker's sequence numbers, or by a look when the channel is silent, and
read from the stream of the same name.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from app.ids import ApiId, WorkerId
from app.keys import Keys
from app.messages.events import Event, EventBatch, decode_event_batch
from app.running.loops import keep
from app.store import Connection, Wire
from app.telemetry import GAPS, logger

log = logger(__name__)

_AGAIN_S = 0.2
_SILENCE_S = 1.0
_PAGE = 256  # stream entries in one read of a repair


class TokenInbox:
    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        api: ApiId,
        deliver: Callable[[*tuple[Event, ...]], None],
        on_loss: Callable[[WorkerId], object],
    ) -> None:
        """`deliver` gets each event once and in order; `on_loss` gets a worker whose events are lost for good."""
        self._wire, self._channel = wire, keys.out(api)
        self._deliver, self._lost = deliver, on_loss
        self._seen: dict[WorkerId, int] = {}  # the last sequence number handled
        self._held: list[EventBatch] = []  # batches behind a gap
        self._attention = asyncio.Event()  # there is a gap
        self._silent = True
        self._read = b"0-0"  # the last stream entry that a repair has handled
        self.subscribed = asyncio.Event()

    async def run(self) -> None:
        """Receives until cancelled, across reconnects."""
        await keep("inbox_disconnected", self._subscribe, _AGAIN_S)

    async def _subscribe(self) -> None:
        """Returns when the connection has closed, or delivers no messages. Raises: RedisError, OSError, StoreDown."""
        connection: Connection | None = None
        try:
            connection = await self._wire.subscribe(self._channel, self._receive)
            await self._listen(connection)
        finally:
            self.subscribed.clear()
            if connection is not None:
                connection.close()

    async def _listen(self, connection: Connection) -> None:
        """Returns when the connection has closed, or delivers no messages. Messages come through `_receive`."""
        await self.repair()
        while not connection.is_closed:
            self._silent = True
            # Not `wait_for`, which in Python 3.11 misses a cancel that comes with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(_SILENCE_S):
                    await self._attention.wait()
            if self._attention.is_set():
                await self.repair()
            elif self._silent and await self.repair():
                log.warning("inbox_was_deaf")
                return

    def _receive(self, reply: Any) -> None:
        if reply[0] not in (b"message", b"smessage"):
            self.subscribed.set()
            return
        self._silent = False
        step = self._decode(reply[2])
        if step is None:
            return
        if step.seq > self._seen.get(step.worker, 0) + 1:
            self._held.append(step)
            self._attention.set()
        else:
            self._handle(step)

    def _decode(self, data: bytes) -> EventBatch | None:
        try:
            return decode_event_batch(data)
        except msgspec.DecodeError as exc:  # of another version, say
            log.error("message_not_understood", error=str(exc), size=len(data))
            return None

    def _handle(self, step: EventBatch) -> None:
        last_seq = self._seen.get(step.worker, 0)
        if step.seq <= last_seq:
            return  # sent twice, or handled by a repair
        if step.seq > last_seq + 1:
            GAPS.labels("lost").inc()
            log.error("messages_lost", worker=step.worker, count=step.seq - last_seq - 1)
            self._lost(step.worker)
        self._seen[step.worker] = step.seq
        self._deliver(*step.events)

    def is_apart_from(self, wire: Wire) -> bool:
        return self._wire is not wire

    def is_steady(self) -> bool:
        """Whether its Redis has been reachable for so long that workers have sent again what it may have lost."""
        return self._wire.is_steady()

    async def repair(self) -> bool:
        """Handles the stream's unhandled entries; returns whether there were any. Raises: StoreDown."""
        # All that precedes the batches held now is in the stream by now, or lost.
        held_batches, self._held = self._held, []
        self._attention.clear()
        has_entries = False
        while True:
            (page,) = await self._wire.execute([("XRANGE", self._channel, b"(" + self._read, "+", "COUNT", _PAGE)])
            for entry, fields in page:
                self._read = max(self._read, entry, key=_entry_order)
                step = self._decode(fields[1])
                if step is not None and step.seq > self._seen.get(step.worker, 0):
                    has_entries = True
                    self._handle(step)
                await asyncio.sleep(0)  # a page of long entries would hold the event loop
            if len(page) < _PAGE:
                break
        for step in held_batches:
            self._handle(step)
        if has_entries:
            GAPS.labels("repaired").inc()
        return has_entries


def _entry_order(entry: bytes) -> tuple[int, int]:
    ms, _, n = entry.partition(b"-")
    return int(ms), int(n)
