"""The one subscription of this API process: step messages in, events out to the requests that await them.

A message that pub/sub lost is found by its worker's sequence number, or by looking when a worker is silent,
and read from the stream behind the channel.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.ids import ApiId, WorkerId
from app.keys import Keys
from app.messages import Event, Step, decode_step
from app.store import async_client
from app.telemetry import GAPS, logger

log = logger(__name__)

_Page = list[tuple[bytes, dict[bytes, bytes]]]  # entry id, fields

_SILENCE_S = 1.0
_PAGE = 256  # stream entries a repair reads at once


class Inbox:
    def __init__(
        self,
        redis: "Redis",
        url: str,
        keys: Keys,
        api: ApiId,
        deliver: Callable[[Event], None],
        lost: Callable[[WorkerId], None],
    ) -> None:
        """`deliver` gets each event once and in order; `lost` is told of a worker whose messages can't be had."""
        self._redis, self._url, self._channel = redis, url, keys.out(api)
        self._deliver, self._lost = deliver, lost
        self._seen: dict[WorkerId, int] = {}  # the last sequence number handled
        self.subscribed = asyncio.Event()

    async def run(self) -> None:
        """Receives until cancelled, across reconnects."""
        while True:
            client = async_client(self._url, socket_timeout=None)
            try:
                async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(self._channel)
                    self.subscribed.set()
                    await self._repair()
                    while True:
                        message = await pubsub.get_message(timeout=_SILENCE_S)
                        if message is None:
                            await self._repair()
                        else:
                            await self._receive(message["data"])
            except (RedisError, OSError) as exc:
                self.subscribed.clear()
                log.warning("inbox_disconnected", error=repr(exc))
                await asyncio.sleep(0.2)
            finally:
                await client.aclose()

    def forget(self, worker: WorkerId) -> None:
        """A worker that is dead sends no more."""
        self._seen.pop(worker, None)

    async def _receive(self, data: bytes) -> None:
        try:
            step = decode_step(data)
        except msgspec.DecodeError as exc:
            log.error("message_not_understood", error=str(exc), size=len(data))
            return
        if step.seq > self._seen.get(step.worker, 0) + 1:
            await self._repair()
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
        for event in step.events:
            self._deliver(event)

    async def _repair(self) -> None:
        """Handles what stands in the stream and has not been seen, oldest first."""
        missed: list[Step] = []
        last = "+"
        while True:
            page = cast(_Page, await self._redis.xrevrange(self._channel, max=last, count=_PAGE))
            steps = [decode_step(fields[b"s"]) for _, fields in page]
            fresh = [step for step in steps if step.seq > self._seen.get(step.worker, 0)]
            missed += fresh
            if len(fresh) < len(steps) or len(page) < _PAGE:
                break
            last = "(" + page[-1][0].decode()
        if missed:
            GAPS.labels("repaired").inc()
        for step in reversed(missed):
            self._handle(step)
