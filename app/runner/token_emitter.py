"""Sends tokens to Redis: one message per engine step and API replica, in order, repeated until Redis has it."""

import asyncio
import math
import time
from collections.abc import Sequence

from app.errors import StoreDown
from app.ids import ApiId, PoolId, RunId, WorkerId
from app.keys import Keys
from app.messages import Event, EventBatch, Job, encode
from app.settings import Settings
from app.store import RELEASE, TRIM_STREAM, Wire
from app.store.wire import Command
from app.telemetry import logger

log = logger(__name__)
_RETRY_S = 0.2
_SHARES = 64  # a stream is trimmed each time this worker has written 1/64 of its bound
_MOST = 50_000  # unsent events, some megabytes; Redis takes them in one message


class TokenEmitter:
    """Collects the events of one engine step. Lives on the engine's event loop."""

    def __init__(self, wire: Wire, keys: Keys, worker: WorkerId, pool: PoolId, settings: Settings) -> None:
        self._wire, self._keys, self._worker, self._pool = wire, keys, worker, pool
        self._stream_bytes, self._ttl_s = settings.stream_bytes, settings.stream_ttl_s
        self._trimmed: dict[ApiId, float] = {}  # monotonic: when this worker last trimmed each stream
        self._written: dict[ApiId, int] = {}  # bytes since then
        self._events: dict[ApiId, list[Event]] = {}
        self._released: list[tuple[RunId, WorkerId, PoolId, str]] = []
        self._seq: dict[ApiId, int] = {}
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
        """Sends the terminal event, and removes reservations and record."""
        self.release(job.run)
        if job.worker != self._worker:  # the decode worker has a reservation, too
            self._account(job.run, job.worker, "ended", job.stages[-1].pool)
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
        self._released.append((run, worker, pool or self._pool, what))
        self._wake.set()
        self._idle.clear()

    async def drained(self, timeout_s: float | None = None) -> None:
        """Returns when everything emitted so far is in Redis, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            log.error("events_not_sent", count=sum(map(len, self._events.values())))

    async def run(self) -> None:
        """Sends until cancelled.

        An engine step wakes its requests before this coroutine, so all of them have emitted when it runs: one
        message has the events of the whole step.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            events, self._events = self._events, {}
            released, self._released = self._released, []
            unheard = await self._send([self._step(api, what) for api, what in events.items()], released)
            if unheard:  # the replica may have ended: bound the stream that XADD may have made anew
                await self._send([], [], unheard)
            self._sent += sum(map(len, events.values()))
            self._room.set()
            if not self._wake.is_set():
                self._idle.set()

    def _step(self, api: ApiId, events: list[Event]) -> tuple[ApiId, int, bytes]:
        seq = self._seq[api] = self._seq.get(api, 0) + 1
        return api, seq, encode(EventBatch(self._worker, seq, events))

    def _is_due(self, api: ApiId, now: float) -> bool:
        """Whether to trim the stream: seldom, since untrimmed bytes of all workers are few beside its bound."""
        at_most = self._stream_bytes // _SHARES
        return self._written[api] >= at_most or now >= self._trimmed.get(api, -math.inf) + self._ttl_s / 4

    def _trim(self, api: ApiId, now: float) -> Command:
        out, marks, ttl_ms = self._keys.out(api), self._keys.out_marks(api), self._ttl_s * 1000
        written, self._written[api], self._trimmed[api] = self._written.get(api, 0), 0, now
        return ("EVAL", TRIM_STREAM, 2, out, marks, written, self._stream_bytes, ttl_ms)

    async def _send(
        self,
        steps: list[tuple[ApiId, int, bytes]],
        released: list[tuple[RunId, WorkerId, PoolId, str]],
        trim: Sequence[ApiId] = (),
    ) -> list[ApiId]:
        """Repeats all commands until Redis has it: receivers drop repeated batches by `seq`.

        Returns the API replicas that weren't subscribed.
        """
        now = time.monotonic()
        commands: list[Command] = []
        for api, _seq, data in steps:
            out = self._keys.out(api)
            commands += ("XADD", out, "*", "s", data), ("PUBLISH", out, data)
            self._written[api] = self._written.get(api, 0) + len(data)
        for run, worker, pool, what in released:
            keys, starting = self._keys.release(run, worker, pool), self._keys.starting(pool)
            commands.append(("EVAL", RELEASE, len(keys), *keys, run, what, worker, starting))
        due = trim or [api for api, _, _ in steps if self._is_due(api, now)]
        commands += [self._trim(api, now) for api in due]
        while True:
            try:
                replies = await self._wire.execute(commands)
                return [api for (api, _, _), heard in zip(steps, replies[1::2], strict=False) if not heard]
            except StoreDown as exc:
                # No connection, out of memory, loading, read-only after a failover: all are temporary.
                log.warning("emit_retried", error=exc.message)
            await asyncio.sleep(_RETRY_S)
