"""Tokens on their way out: one message per engine step and API replica, in order, until Redis has it."""

import asyncio
import math
import time
from collections.abc import Sequence

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from app.ids import ApiId, RunId, WorkerId
from app.keys import Keys
from app.messages import Event, EventBatch, Job, encode
from app.settings import Settings
from app.store import RELEASE, TRIM_STREAM
from app.telemetry import logger

log = logger(__name__)
_RETRY_S = 0.2
_SHARES = 64  # of the bytes kept for an API replica, so many say how coarsely they are counted
_MOST = 50_000  # events, some megabytes; Redis takes them at once


class TokenEmitter:
    """Collects what the requests of one engine step produce. Lives on the engine's event loop."""

    def __init__(self, redis: "Redis", keys: Keys, worker: WorkerId, settings: Settings) -> None:
        self._redis, self._keys, self._worker = redis, keys, worker
        self._stream_bytes, self._ttl_s = settings.stream_bytes, settings.stream_ttl_s
        self._trimmed: dict[ApiId, float] = {}  # monotonic: when each stream was last bounded from here
        self._written: dict[ApiId, int] = {}  # bytes since then
        self._events: dict[ApiId, list[Event]] = {}
        self._released: list[tuple[RunId, WorkerId, str]] = []
        self._seq: dict[ApiId, int] = {}
        self.emitted = 0
        self.withheld = 0  # outputs that go out later, several as one
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
        """Redis is away, and there is enough to be said: a maker of more waits for `room`, and the engine keeps it."""
        return self.emitted - self._sent > _MOST

    async def room(self) -> None:
        while self.full:
            self._room.clear()
            await self._room.wait()

    def end(self, job: Job, event: Event) -> None:
        """The terminal event; with it the reservations and the record go."""
        self.release(job.run)
        if job.worker != self._worker:  # it was to go on there
            self._account(job.run, job.worker, "ended")
        self.emit(job.reply_to, event)

    def release(self, run: RunId) -> None:
        """Run here or not, it is no load of this worker's any more."""
        self._account(run, self._worker, "ended")

    def left(self, run: RunId) -> None:
        """It goes on elsewhere."""
        self._account(run, self._worker, "left")

    def prefilled(self, run: RunId) -> None:
        """Its first token is out: its prompt is no load any more."""
        self._account(run, self._worker, "prefilled")

    def _account(self, run: RunId, worker: WorkerId, what: str) -> None:
        self._released.append((run, worker, what))
        self._wake.set()
        self._idle.clear()

    async def drained(self, timeout_s: float | None = None) -> None:
        """Returns when everything emitted so far is in Redis, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            log.error("events_not_sent", count=sum(map(len, self._events.values())))

    async def run(self) -> None:
        """Sends until cancelled.

        The requests that one engine step wakes are all scheduled before this coroutine is, so all of them have
        emitted when it runs: that makes one message of them.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            events, self._events = self._events, {}
            released, self._released = self._released, []
            unheard = await self._send([self._step(api, what) for api, what in events.items()], released)
            if unheard:  # by a replica that has ended, say: its stream may have gone, and be a new one now
                await self._send([], [], unheard)
            self._sent += sum(map(len, events.values()))
            self._room.set()
            if not self._wake.is_set():
                self._idle.set()

    def _step(self, api: ApiId, events: list[Event]) -> tuple[ApiId, int, bytes]:
        seq = self._seq[api] = self._seq.get(api, 0) + 1
        return api, seq, encode(EventBatch(self._worker, seq, events))

    def _is_due(self, api: ApiId, now: float) -> bool:
        """Seldom: what each worker may write unsaid is little of what is kept."""
        at_most = self._stream_bytes // _SHARES
        return self._written[api] >= at_most or now >= self._trimmed.get(api, -math.inf) + self._ttl_s / 4

    def _trim(self, pipe: "Pipeline", api: ApiId, now: float) -> None:
        out, ttl_ms = self._keys.out(api), self._ttl_s * 1000
        pipe.eval(TRIM_STREAM, 2, out, self._keys.out_marks(api), self._written.get(api, 0), self._stream_bytes, ttl_ms)
        self._written[api], self._trimmed[api] = 0, now

    async def _send(
        self,
        steps: list[tuple[ApiId, int, bytes]],
        released: list[tuple[RunId, WorkerId, str]],
        trim: Sequence[ApiId] = (),
    ) -> list[ApiId]:
        """Repeats the whole pipeline until it got through: receivers drop what they have seen, by `seq`.

        Returns the API replicas that did not listen.
        """
        now = time.monotonic()
        pipe = self._redis.pipeline(transaction=False)
        for api, _seq, data in steps:
            out = self._keys.out(api)
            pipe.xadd(out, {"s": data})
            pipe.publish(out, data)
            self._written[api] = self._written.get(api, 0) + len(data)
        for run, worker, what in released:
            keys = self._keys.release(run, worker)
            pipe.eval(RELEASE, len(keys), *keys, run, what)
        for api in trim or [api for api, _, _ in steps if self._is_due(api, now)]:
            self._trim(pipe, api, now)
        commands = list(pipe.command_stack)
        while True:
            try:
                replies = await pipe.execute()
                return [api for (api, _, _), heard in zip(steps, replies[1::2], strict=False) if not heard]
            except (RedisError, OSError) as exc:
                # No connection, out of memory, loading, read-only after a failover: all pass.
                log.warning("emit_retried", error=repr(exc))
            await asyncio.sleep(_RETRY_S)
            pipe.command_stack = commands.copy()
