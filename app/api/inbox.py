"""The one subscription of this API process: step messages in, events out to the requests that await them.

A message that pub/sub lost is found by its worker's sequence number, or by looking when the channel is silent,
and read from the stream behind the channel.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from redis.exceptions import RedisError

from app.errors import StoreDown
from app.ids import ApiId, WorkerId
from app.keys import Keys
from app.messages import Event, Step, decode_step
from app.store import Connection, Wire
from app.telemetry import GAPS, logger

log = logger(__name__)

_SILENCE_S = 1.0
_PAGES = (1, 256)  # stream entries that a repair reads at first, to see whether there is more, and then at once


class Inbox:
    def __init__(
        self, wire: Wire, keys: Keys, api: ApiId, deliver: Callable[[Event], None], lost: Callable[[WorkerId], None]
    ) -> None:
        """`deliver` gets each event once and in order; `lost` is told of a worker whose messages can't be had."""
        self._wire, self._channel = wire, keys.out(api)
        self._deliver, self._lost = deliver, lost
        self._seen: dict[WorkerId, int] = {}  # the last sequence number handled
        self._held: list[Step] = []  # what came behind a gap
        self._attention = asyncio.Event()  # there is a gap
        self._silent = True
        self.subscribed = asyncio.Event()

    async def run(self) -> None:
        """Receives until cancelled, across reconnects."""
        while True:
            connection: Connection | None = None
            try:
                connection = await self._wire.subscribe(self._channel, self._receive)
                await self._listen(connection)
            except (RedisError, OSError, StoreDown) as exc:
                log.warning("inbox_disconnected", error=repr(exc))
            finally:
                self.subscribed.clear()
                if connection is not None:
                    connection.close()
            await asyncio.sleep(0.2)

    def forget(self, worker: WorkerId) -> None:
        """A worker that is dead sends no more."""
        self._seen.pop(worker, None)

    async def _listen(self, connection: Connection) -> None:
        """Returns when the connection is gone or has turned out to be deaf. Messages come through `_receive`."""
        await self._repair()
        while not connection.closed.is_set():
            self._silent = True
            with suppress(TimeoutError):
                await asyncio.wait_for(self._attention.wait(), _SILENCE_S)
            if self._attention.is_set():
                await self._repair()
            elif self._silent and await self._repair():
                log.warning("inbox_was_deaf")
                return

    def _receive(self, reply: Any) -> None:
        if reply[0] != b"message":
            self.subscribed.set()
            return
        self._silent = False
        try:
            step = decode_step(reply[2])
        except msgspec.DecodeError as exc:
            log.error("message_not_understood", error=str(exc), size=len(reply[2]))
            return
        if self._held or step.seq > self._seen.get(step.worker, 0) + 1:
            self._held.append(step)
            self._attention.set()
        else:
            self._handle(step)

    def _handle(self, step: Step) -> None:
        seen = self._seen.get(step.worker, 0)
        if step.seq <= seen:
            return  # sent twice, or read in a repair already
        if step.seq > seen + 1:
            GAPS.labels("lost").inc()
            log.error("messages_lost", worker=step.worker, count=step.seq - seen - 1)
            self._lost(step.worker)
        self._seen[step.worker] = step.seq
        deliver = self._deliver
        for event in step.events:
            deliver(event)

    async def _repair(self) -> bool:
        """Handles what stands in the stream and has not been seen, oldest first; tells whether there was any."""
        missed = await self._missed()
        if missed:
            GAPS.labels("repaired").inc()
        held, self._held = self._held, []
        self._attention.clear()
        for step in [*reversed(missed), *held]:
            self._handle(step)
        return bool(missed)

    async def _missed(self) -> list[Step]:
        """Newest first."""
        missed: list[Step] = []
        end: str | bytes = "+"
        count = _PAGES[0]
        while True:
            (page,) = await self._wire.execute([("XREVRANGE", self._channel, end, "-", "COUNT", count)])
            steps = [decode_step(fields[1]) for _, fields in page]
            fresh = [step for step in steps if step.seq > self._seen.get(step.worker, 0)]
            missed += fresh
            if len(fresh) < len(steps) or len(page) < count:
                return missed
            end, count = b"(" + page[-1][0], _PAGES[1]
