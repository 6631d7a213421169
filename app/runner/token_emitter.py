"""Sends tokens to one Redis: one message per engine step and API replica, in order, repeated until Redis has it.

Steps that end while a message is under way go out together in the next one, as one delta of each choice.

A Redis that lost its memory gets the messages of the last seconds again: API replicas may not have read them.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from itertools import chain, repeat
from typing import NamedTuple

from app.errors import StoreDown
from app.ids import ApiId, PoolId, RunId, WorkerId
from app.keys import Keys
from app.messages.deltas import merge_events
from app.messages.events import Delta, Event, EventBatch
from app.messages.job import Job
from app.messages.wire import encode
from app.running.loops import keep
from app.settings import Settings
from app.store import AnyConnection, Wire
from app.store.connection import Command
from app.store.scripts import RELEASE, TRIM_STREAM
from app.telemetry import logger

log = logger(__name__)
_RETRY_AFTER_S = (0.0, 0.05, 0.2)
_SHARES = 64  # a stream is trimmed each time this worker has written 1/64 of its bound
_MOST = 50_000  # unsent events, some megabytes; Redis takes them in one message
_MOST_RELEASED = 1000  # runs in one message: each is a script
_HELD_S, _HELD_BYTES = 2.0, 2**20  # of sent messages of one API replica, which reads them within milliseconds
_LOOK_S = 0.5  # how often a connection is looked at while messages are held


class _Sent(NamedTuple):
    at: float  # monotonic
    data: bytes


class _Stream:
    """The messages that were sent to one API replica."""

    def __init__(self) -> None:
        self.seq = 0
        self.trimmed = -math.inf  # monotonic: when this worker last trimmed it
        self.written = 0  # bytes since then
        self.held: deque[_Sent] = deque()
        self.held_bytes = 0
        self.last = b""  # the entry of the last message

    def hold(self, now: float, data: bytes) -> None:
        self.held.append(_Sent(now, data))
        self.held_bytes += len(data)
        self.drop_old(now)

    def drop_old(self, now: float) -> None:
        messages = self.held
        while messages and (messages[0].at < now - _HELD_S or (self.held_bytes > _HELD_BYTES and len(messages) > 1)):
            self.held_bytes -= len(messages.popleft().data)


class TokenEmitter:
    """Collects the events of one engine step. Lives on the engine's event loop."""

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        worker: WorkerId,
        pool: PoolId,
        settings: Settings,
        main: "TokenEmitter | None" = None,
    ) -> None:
        """`main`: the emitter to the Redis that has reservations and records; None: it is this one."""
        self._wire, self._keys, self._worker, self._pool = wire, keys, worker, pool
        self._main = main
        self._stream_bytes, self._ttl_s = settings.stream_bytes, settings.stream_ttl_s
        self._streams: dict[ApiId, _Stream] = {}
        self._connection: AnyConnection | None = None  # that of the last message
        self._events: dict[ApiId, list[Event]] = {}
        self._released: list[tuple[RunId, WorkerId, PoolId, str]] = []
        self.emitted = 0
        self.withheld = 0  # outputs that are sent later, several as one
        self._sent = 0
        self._room = asyncio.Event()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def emit(self, api: ApiId, event: Event) -> None:
        self.emitted += 1
        self._events.setdefault(api, []).append(event)
        self._wake.set()
        self._idle.clear()

    @property
    def full(self) -> bool:
        """Whether too many events are unsent, since Redis is unreachable: callers of `emit` then wait for `room`."""
        return self.emitted - self._sent > _MOST

    async def room(self) -> None:
        while self.full:
            self._room.clear()
            await self._room.wait()

    def end(self, job: Job, event: Event) -> None:
        """Sends the terminal event, and removes reservations and record.

        The record stays until the event is where the replica reads it; the reservations don't wait for that.
        """
        places = {self._worker: self._pool}
        if job.worker != self._worker:  # the decode worker has a reservation, too
            places[job.worker] = job.stages[-1].pool
        for worker, pool in places.items():
            if self._main is not None:
                self._main._account(job.run, worker, "left", pool)  # noqa: SLF001 (its own class)
            self._account(job.run, worker, "ended", pool)
        self.emit(job.reply_to, event)

    def release(self, run: RunId) -> None:
        """Removes this worker's reservation for the run, begun or not."""
        self._account(run, self._worker, "ended")

    def left(self, run: RunId) -> None:
        """The run continues on another worker: removes this worker's reservation only."""
        self._account(run, self._worker, "left")

    def prefilled(self, run: RunId) -> None:
        """The run's first token is out: its prompt isn't waiting any more."""
        self._account(run, self._worker, "prefilled")

    def _account(self, run: RunId, worker: WorkerId, what: str, pool: PoolId | None = None) -> None:
        self._take([(run, worker, pool or self._pool, what)])

    def _take(self, releases: Sequence[tuple[RunId, WorkerId, PoolId, str]]) -> None:
        self._released += releases
        self._wake.set()
        self._idle.clear()

    async def drained(self, timeout_s: float | None = None) -> None:
        """Returns when everything emitted so far is in Redis, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
                if self._main is not None:  # it has what follows from the events
                    await self._main._idle.wait()  # noqa: SLF001 (its own class)
        except TimeoutError:
            log.error("events_not_sent", count=sum(map(len, self._events.values())))

    async def run(self) -> None:
        """Sends until cancelled.

        An engine step wakes its requests before this coroutine, so all of them have emitted when it runs: one
        message has the events of the whole step.
        """
        looking = asyncio.create_task(keep("held_messages_not_looked_at", self._look, _LOOK_S, later=True))
        try:
            await keep("events_not_sent", self._send_on, 0)
        finally:
            looking.cancel()

    async def _send_on(self) -> None:
        """Sends all that waits, again and again: until it fails, in one turn of `keep`, since it is the token path.

        What can't be sent at all is a gap, which API replicas notice, and ask for elsewhere.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            events, self._events = self._events, {}
            releases, self._released = self._released[:_MOST_RELEASED], self._released[_MOST_RELEASED:]
            if self._released:
                self._wake.set()
            try:
                steps = [self._step(api, what) for api, what in events.items()]
                in_one = self._main is None and not self._wire.is_cluster  # whose nodes keep no common order
                unheard = await self._send(steps, releases if in_one else [])
                if self._main is not None:
                    self._main._take(releases)  # noqa: SLF001 (its own class; after the events, never before)
                elif not in_one:
                    await self._send([], releases)
                if unheard:  # the replica may have ended: bound the stream that XADD may have made anew
                    await self._send([], [], unheard)
            except Exception:
                self._take(releases)  # again
                raise
            finally:
                self._sent += sum(map(len, events.values()))
                self._room.set()
                if not self._wake.is_set():
                    self._idle.set()

    def _look(self) -> None:
        """Lets `run` send again what a Redis that broke may have lost, also if no event follows."""
        if self._connection is None:
            return
        if self._connection.is_closed:
            if any(stream.held for stream in self._streams.values()):
                self._wake.set()
            return
        now = time.monotonic()
        for stream in self._streams.values():
            stream.drop_old(now)

    def _step(self, api: ApiId, events: list[Event]) -> tuple[ApiId, bytes]:
        stream = self._streams.setdefault(api, _Stream())
        stream.seq += 1
        answering = [e.request for e in events if type(e) is Delta]
        if len(set(answering)) < len(answering):  # several steps, since Redis took its time: one delta of each choice
            events = merge_events(events)
        return api, encode(EventBatch(self._worker, stream.seq, events))

    def _is_due(self, stream: _Stream, now: float) -> bool:
        """Whether to trim the stream: seldom, since untrimmed bytes of all workers are few beside its bound."""
        return stream.written >= self._stream_bytes // _SHARES or now >= stream.trimmed + self._ttl_s / 4

    def _trim(self, api: ApiId, now: float) -> Command:
        out, marks, ttl_ms = self._keys.out(api), self._keys.out_marks(api), self._ttl_s * 1000
        stream = self._streams[api]
        written_bytes, stream.written, stream.trimmed = stream.written, 0, now
        return ("EVAL", TRIM_STREAM, 2, out, marks, written_bytes, self._stream_bytes, ttl_ms)

    async def _send(
        self,
        steps: list[tuple[ApiId, bytes]],
        releases: list[tuple[RunId, WorkerId, PoolId, str]],
        trim: Sequence[ApiId] = (),
    ) -> list[ApiId]:
        """Repeats all commands until Redis has it: receivers drop repeated batches by `seq`.

        Returns the API replicas that weren't subscribed.
        """
        now = time.monotonic()
        commands: list[Command] = []
        for api, data in steps:
            commands += self._message(api, data)
            self._streams[api].written += len(data)
        for run, worker, pool, what in releases:
            keys = self._keys.release(run, worker, pool)
            commands.append(("EVAL", RELEASE, len(keys), *keys, run, what, worker))
        due = trim or [api for api, _ in steps if self._is_due(self._streams[api], now)]
        commands += [self._trim(api, now) for api in due]
        for tries, wait_s in enumerate(chain(_RETRY_AFTER_S, repeat(_RETRY_AFTER_S[-1])), 1):
            try:
                connection = await self._wire.connection()
                if connection is not self._connection:
                    await self._send_again(connection)
                replies = await self._wire.execute_on(connection, commands)
                break
            except StoreDown as exc:
                # No connection, out of memory, loading, read-only after a failover: all are temporary.
                if not tries & (tries - 1):  # the first, second, fourth, …: an outage may be long
                    log.warning("emit_retried", error=exc.message, tries=tries)
            await asyncio.sleep(wait_s)
        now = time.monotonic()
        for (api, data), entry in zip(steps, replies[::2], strict=False):
            stream = self._streams[api]
            stream.last = entry
            stream.hold(now, data)
        return [api for (api, _), receivers in zip(steps, replies[1::2], strict=False) if not receivers]

    async def _send_again(self, connection: AnyConnection) -> None:
        """Sends on a new connection the held messages of streams whose last entry Redis lacks. Raises: StoreDown."""
        streams = {api: stream for api, stream in self._streams.items() if stream.held}
        questions: list[Command] = [("XRANGE", self._keys.out(api), s.last, s.last) for api, s in streams.items()]
        replies = await self._wire.execute_on(connection, questions)
        for (api, stream), entries in zip(streams.items(), replies, strict=True):
            if not entries:
                messages = [self._message(api, data) for _, data in stream.held]
                commands = [*chain.from_iterable(messages), self._trim(api, time.monotonic())]
                *_, stream.last, _receivers, _trim_reply = await self._wire.execute_on(connection, commands)
                log.info("messages_sent_again", api=api, count=len(messages))
        self._connection = connection

    def _message(self, api: ApiId, data: bytes) -> tuple[Command, Command]:
        out = self._keys.out(api)
        return ("XADD", out, "*", "s", data), (self._wire.publish, out, data)
