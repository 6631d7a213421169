"""`xylem record`: live traffic as a trace, without its text."""

import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from app.cli.report import err, refuse
from app.cli.stored import stored

if TYPE_CHECKING:
    from redis import Redis

    from app.cli.recording import Received
    from app.keys import Keys
    from app.messages.recording import Recording

_KEY_TTL_MS = 10_000
_BLOCK_MS = 500
_PATIENCE_S = 60.0  # how long Redis may be away
_SOON_S = 10.0  # in which a replica has to report


def record(
    out: Annotated[Path, typer.Option("--out", help="The file to write: trace.jsonl, or .jsonl.gz.")],
    minutes: Annotated[float, typer.Option(min=0.01, max=1440, help="How long.")] = 10,
    model: Annotated[str, typer.Option(help="Only this model's requests, by its own name.")] = "",
    drain: Annotated[float, typer.Option(min=0, help="Seconds to wait afterwards for answers that still run.")] = 60,
    requests: Annotated[int, typer.Option(min=1, help="End after so many.")] = 1_000_000,
) -> None:
    """Record live requests of all API replicas: times, lengths, shared prefixes, no text. Ctrl-C ends it earlier."""
    from app.cli.recording import Received
    from app.cli.trace import write_trace

    if not out.parent.is_dir():
        refuse(f"there is no folder {out.parent}")
    records = Received()
    with stored() as (redis, keys), _interrupts() as interrupts:
        recording = _begin(redis, keys, minutes * 60, model)
        follower = _Follower(redis, keys, recording, records)
        try:
            with _shown(minutes * 60) as show:
                until = follower.follow(show, interrupts, requests)
                running = follower.drain(show, interrupts, until, drain)
        finally:
            follower.end()
    if not records.replicas:
        refuse("no API replica has reported: are they of this version, and may they write recorded:*?", code=1)
    lines = list(records.requests(recording.since, until))
    try:
        write_trace(out, lines)
    except OSError as exc:
        refuse(f"{out}: {exc.strerror}", code=1)
    _report(out, len(lines), records, running)
    if model and not lines:
        err.print(f"  None was for the model '{model}': it counts by its own name, not by an alias", markup=False)
    if follower.failure:
        refuse(f"ended early: {follower.failure}", code=1)


def _report(out: Path, requests: int, recording: "Received", running: int) -> None:
    err.print(f"{out}: {requests} requests of {recording.replicas} API replicas", markup=False, soft_wrap=True)
    for count, what in (
        (recording.unanswered, "were refused, failed or left before their first token"),
        (running, "had not ended"),
        (recording.lost, "were lost on the way: too many at once, or Redis was away"),
    ):
        if count:
            err.print(f"  not in it: {count} that {what}")
    if silent := recording.silent(time.monotonic()):
        err.print(f"  {silent} of the replicas ended meanwhile; what they had not reported is missing")


def _begin(redis: "Redis", keys: "Keys", seconds: float, model: str) -> "Recording":
    from app.messages.recording import Recording
    from app.messages.wire import encode

    since = _now(redis)
    recording = Recording(secrets.token_hex(8), secrets.token_bytes(32), since, since + seconds, model)
    if not redis.set(keys.recording(), encode(recording), nx=True, px=_KEY_TTL_MS):
        refuse("another `xylem record` is at work; one that was killed ends within 10 seconds", code=1)
    return recording


def _now(redis: "Redis") -> float:
    seconds, micros = redis.time()
    return seconds + micros / 1e6


class _Follower:
    """Reads what the replicas write, and renews the recording."""

    def __init__(self, redis: "Redis", keys: "Keys", recording: "Recording", requests: "Received") -> None:
        self._redis, self._keys, self._recording, self._received = redis, keys, recording, requests
        self._last: bytes | str = "0-0"
        self._began = self._answered = time.monotonic()
        self.failure = ""

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def follow(self, show: Any, signals: list[int], most: int) -> float:
        """Records until the time is over, it is interrupted or there are `most` requests.

        Returns the end, seconds since the epoch.
        """
        seconds = self._recording.until - self._recording.since
        while self._elapsed < seconds and not signals and len(self._received) < most and not self.failure:
            self._step()
            what = "recording"
            if not self._received.replicas and self._elapsed > _SOON_S:
                what = "no API replica has reported yet"
            show(what, min(self._elapsed, seconds), self._received)
        return min(self._recording.since + self._elapsed, self._recording.until)

    def drain(self, show: Any, signals: list[int], until: float, patience_s: float) -> int:
        """Waits until all that came in time has ended; ends sooner after `patience_s` or at another interrupt.

        Returns how many have not ended.
        """
        from msgspec.structs import replace
        from redis import RedisError

        from app.messages.wire import encode

        before, ends = len(signals), time.monotonic() + patience_s
        self._recording = replace(self._recording, until=until)
        running: int | None = None
        try:
            self._redis.set(self._keys.recording(), encode(self._recording), px=_KEY_TTL_MS)
        except (RedisError, OSError) as exc:  # the file is written in any case
            self.failure = self.failure or str(exc)
        while running != 0 and len(signals) == before and not self.failure:
            if time.monotonic() >= ends and running is not None:
                break
            self._step()
            running = self._received.running(until, time.monotonic())
            show(f"waiting for {running or 0} answers", self._elapsed, self._received)
            if running is None and time.monotonic() > ends + _SOON_S:
                break
        return running or 0

    def end(self) -> None:
        from redis import RedisError

        try:
            self._redis.unlink(self._keys.recording(), self._keys.recorded(self._recording.id))
        except (RedisError, OSError) as exc:  # they expire by themselves
            self.failure = self.failure or str(exc)

    def _step(self) -> None:
        from redis import RedisError

        try:
            self._renew()
            self._read()
            self._answered = time.monotonic()
        except (RedisError, OSError) as exc:
            if time.monotonic() - self._answered > _PATIENCE_S:
                self.failure = str(exc)
            time.sleep(_BLOCK_MS / 1000)

    def _renew(self) -> None:
        """Raises: RedisError, OSError."""
        from app.messages.recording import decode_recording
        from app.messages.wire import encode

        name = self._keys.recording()
        there = cast(bytes | None, self._redis.get(name))
        if there is None:  # Redis has lost it, or this process slept
            self._redis.set(name, encode(self._recording), nx=True, px=_KEY_TTL_MS)
        elif decode_recording(there).id == self._recording.id:
            self._redis.pexpire(name, _KEY_TTL_MS)
        else:
            self.failure = "another `xylem record` has begun meanwhile"

    def _read(self) -> None:
        """Waits half a second at most. Raises: RedisError, OSError."""
        from app.messages.recording import decode_recorded

        stream = self._keys.recorded(self._recording.id)
        streams: Any = self._redis.xread({stream: self._last}, count=200, block=_BLOCK_MS)
        for _stream, entries in streams or ():
            for id_, fields in entries:
                self._received.take(decode_recorded(fields[b"b"]), time.monotonic())
                self._last = id_
            self._redis.xtrim(stream, minid=self._last, approximate=False)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Grows with each Ctrl-C: an exception could come amid a reply of Redis."""
    signals: list[int] = []
    old = {number: signal.signal(number, lambda n, _: signals.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextmanager
def _shown(seconds: float) -> Iterator[Any]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    counts = TextColumn("{task.fields[count]} requests, {task.fields[replicas]} replicas")
    columns = TextColumn("{task.description}"), BarColumn(), counts, TimeRemainingColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("recording", total=seconds, count=0, replicas=0)

        def show(what: str, seconds: float, requests: "Received") -> None:
            fields: dict[str, Any] = {"count": len(requests), "replicas": requests.replicas}
            progress.update(task, description=what, completed=seconds, **fields)

        yield show
