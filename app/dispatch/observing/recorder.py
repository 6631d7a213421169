"""Records the requests that end, while `xylem record` wants it: times, lengths and digests, no text."""

import asyncio
from array import array
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from msgspec import Struct

from app.dispatch.inflight import InFlight
from app.dispatch.observing.timeline import Timelines
from app.errors import StoreDown
from app.ids import ApiId, RequestId
from app.keys import Keys
from app.kv.blocks import HASH_BYTES, media_keys
from app.messages.job import Job
from app.messages.recording import Recorded, RecordedBatch, Recording, decode_recording
from app.messages.wire import encode
from app.running.loops import keep
from app.store import Command, Wire, clock
from app.telemetry import logger

log = logger(__name__)

BLOCK_TOKENS = 512  # of a trace
_EVERY_S = 0.5
_MOST_WAITING = 10_000  # ended requests that are not written yet; more are dropped, and counted
_IN_ONE_ENTRY = 100
_ENTRIES = 1000  # more than ten seconds of them, after which nothing is recorded without a reader
_STREAM_TTL_MS = 60_000


class _Ended(Struct, frozen=True):
    job: Job
    came: float
    answers: list[int]
    model: str


class Recorder:
    """The recorder of requests that end. While nothing is recorded, an ended request costs one comparison."""

    def __init__(self, wire: Wire, keys: Keys, api: ApiId, timelines: Timelines) -> None:
        self._wire, self._keys, self._api, self._timelines = wire, keys, api, timelines
        self._now: Recording | None = None
        self._forget()

    def _forget(self) -> None:
        self._waiting: list[_Ended] = []
        self._total = self._unanswered = 0
        self._awaited: set[RequestId] | None = None  # that were running when the recording's time was over

    @property
    def question(self) -> Command:
        """Asks Redis what is recorded."""
        return "GET", self._keys.recording()

    def answered(self, raw: bytes | StoreDown | None) -> None:
        """The reply to `question`."""
        if isinstance(raw, StoreDown):  # a user without the right to read it: nothing is recorded
            return
        try:
            now = None if raw is None else decode_recording(raw)
        except msgspec.DecodeError as exc:
            log.error("recording_not_understood", error=str(exc))
            now = None
        if (now and now.id) != (self._now and self._now.id):
            self._forget()
        self._now = now

    def ended(self, model: str, came: float, prompts: Sequence[InFlight]) -> None:
        """A request has ended. `came`: when it arrived, seconds since the epoch."""
        now = self._now
        if now is None or not now.since <= came <= now.until or now.model not in ("", model):
            return
        for inflight in prompts:
            answers = [len(out.tokens) for out in inflight.out]
            if not _is_recorded(inflight.job):
                continue
            if not any(answers):
                self._unanswered += 1
                continue
            self._total += 1
            if len(self._waiting) < _MOST_WAITING:
                self._waiting.append(_Ended(inflight.job, came, answers, model))

    async def run(self) -> None:
        """Writes what has ended, until cancelled."""
        await keep("requests_not_recorded", self._turn, _EVERY_S, later=True)

    async def _turn(self) -> None:
        if self._now is not None:
            await self._write(self._now)

    async def _write(self, now: Recording) -> None:
        """Raises: StoreDown; then these records are lost, which `xylem record` finds by `total`."""
        ended_requests, self._waiting = self._waiting, []
        counts, running, at = (self._total, self._unanswered), self._running(now), clock.now()
        # In a thread: long prompts take milliseconds.
        records = await asyncio.to_thread(_all_recorded, ended_requests, now.secret)
        stream = self._keys.recorded(now.id)
        commands: list[Command] = []
        for start in range(0, len(records) or 1, _IN_ONE_ENTRY):
            part = records[start : start + _IN_ONE_ENTRY]
            batch = RecordedBatch(self._api, part, *counts, running + len(records) - start - len(part), at)
            commands.append(("XADD", stream, "MAXLEN", "~", _ENTRIES, "*", "b", encode(batch)))
        await self._wire.execute([*commands, ("PEXPIRE", stream, _STREAM_TTL_MS)])

    def _running(self, now: Recording) -> int:
        """Number of requests that came in time and have not ended; all that run while the time isn't over."""
        running = {
            request
            for request, prompts in self._timelines.running()
            if not prompts or any(_is_recorded(inflight.job) for inflight in prompts)
        }
        if clock.now() <= now.until:
            return len(running)
        self._awaited = running if self._awaited is None else self._awaited & running
        return len(self._awaited)


def _is_recorded(job: Job) -> bool:
    """Whether a request is recorded: none that fills idle engines, and none that a trace has no place for.

    A trace has none for inputs to be encoded, paintings and sound.
    """
    return job.kind == "decode" and not job.aside and not job.encoder_tokens


def _all_recorded(requests: Sequence[_Ended], secret: bytes) -> list[Recorded]:
    return [recorded(one.job, one.came, one.answers, secret, one.model) for one in requests]


def recorded(job: Job, came: float, answers: list[int], secret: bytes, model: str = "") -> Recorded:
    """The record of a request, without any text or name: digests need the secret to be compared with a guess."""
    session = blake2b(job.session.encode(), key=secret, digest_size=HASH_BYTES).digest() if job.session else b""
    return Recorded(job.request, came, len(job.prompt), answers, blocks=_blocks(job, secret, model), session=session)


def _blocks(job: Job, secret: bytes, model: str) -> bytes:
    """A digest for each block, the last one as far as it goes: of all that its KV depends on up to there."""
    keys = (model, job.adapter or "", job.cache_salt or "")
    running = blake2b("\0".join(keys).encode(), key=secret, digest_size=HASH_BYTES)
    extras = media_keys(job.media, BLOCK_TOKENS) if job.media else {}
    tokens, out = memoryview(array("I", job.prompt)), []
    for number, start in enumerate(range(0, len(tokens), BLOCK_TOKENS)):
        running.update(tokens[start : start + BLOCK_TOKENS])
        if extra := extras.get(number):
            running.update(extra)
        out.append(running.digest())
    return b"".join(out)
