"""Decoder processes, and the threads that wait for them.

Threads alone would do for speed: Pillow releases the interpreter's lock. Processes can be bounded and ended.
Decision 0043 has the figures.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import app
from app.media.decoder_protocol import Decoded, Job, NotDecoded, Shape, receive_answer, receive_bytes, send
from app.media.limits import Limits
from app.media.picture import Picture
from app.media.refused import Refused
from app.media.sound import Sound
from app.media.source import SourceKind
from app.media.video import Frame, Video
from app.telemetry import logger

log = logger(__name__)

_PROCESSES = min(4, len(os.sched_getaffinity(0)))
# So that `app` and what is installed are found; nothing else of our environment, which has passwords.
_ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(Path(app.__path__[0]).parent), *sys.path[1:]]),
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's: each thread takes memory at once, which is bounded
}


class DecoderPool:
    """At most `processes` parts at a time; others wait. The first one starts a process, in 0.1 s."""

    def __init__(self, limits: Limits, processes: int = _PROCESSES) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="media-decoding")
        self._own = threading.local()
        self._all: set[_Decoder] = set()

    async def picture(self, kind: SourceKind, pieces: Sequence[bytes], *, base64: bool = False) -> Picture:
        """`kind`: a picture or a mask. Raises: Refused."""
        decoded, bodies = await self._run(kind, pieces, base64)
        return _picture(decoded.pictures[0], bodies[0])

    async def video(self, pieces: Sequence[bytes], *, base64: bool = False) -> Video:
        """Raises: Refused."""
        decoded, bodies = await self._run("video", pieces, base64)
        shapes = zip(decoded.pictures, bodies, strict=True)
        return Video(decoded.long_s, [Frame(shape.at_s, _picture(shape, body)) for shape, body in shapes])

    async def sounds(self, pieces: Sequence[bytes], *, base64: bool = False, window_s: float = 0.0) -> list[Sound]:
        """A sound whole, or in windows of at most so many seconds. Raises: Refused."""
        decoded, bodies = await self._run("audio", pieces, base64, window_s)
        return [
            Sound(window.start, window.length, body, window.sha256)
            for window, body in zip(decoded.windows, bodies, strict=True)
        ]

    def close(self) -> None:
        """Ends the processes, also those at work. Blocks."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for decoder in self._all.copy():
            decoder.end()
        self._threads.shutdown()
        for decoder in self._all:
            decoder.close()

    async def _run(
        self, kind: SourceKind, pieces: Sequence[bytes], base64: bool, window_s: float = 0.0
    ) -> tuple[Decoded, list[bytes]]:
        limits = self._limits
        size = sum(map(len, pieces))
        cpu_s = limits.sound_decode_s if kind == "audio" else limits.decode_s
        job = Job(
            kind, size, base64, limits.pixels, limits.frames, limits.video_s, cpu_s, limits.sound_s, window_s
        )  # fmt: skip
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._decode, job, pieces)

    def _decode(self, job: Job, pieces: Sequence[bytes]) -> tuple[Decoded, list[bytes]]:
        """In a thread, each of which has its own process."""
        decoder: _Decoder | None = getattr(self._own, "decoder", None)
        if decoder is None:
            decoder = self._own.decoder = _Decoder(self._limits.decode_bytes)
            self._all.add(decoder)
        try:
            return decoder.decode(job, pieces)
        except (EOFError, OSError) as exc:
            self._all.discard(decoder)
            self._own.decoder = None
            raise _ended(decoder.close(), job) from exc


class _Decoder:
    """One process."""

    def __init__(self, most: int) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app.media.decoder_process", str(most)],
                stdin=theirs.fileno(),
                env=_ENVIRONMENT,
                process_group=0,  # Ctrl-C is for us; it ends when we do
            )

    def decode(self, job: Job, pieces: Sequence[bytes]) -> tuple[Decoded, list[bytes]]:
        """Raises: Refused; EOFError or OSError if the process has ended."""
        send(self._connection, job)
        for piece in pieces:
            self._connection.sendall(piece)
        answer = receive_answer(self._connection)
        if isinstance(answer, NotDecoded):
            raise Refused(answer.reason)
        return answer, [receive_bytes(self._connection, size) for size in answer.sizes]

    def end(self) -> int:
        """Also while a thread waits for its answer. Returns the process's exit status."""
        self._process.kill()
        return self._process.wait()

    def close(self) -> int:
        """When no thread uses it."""
        self._connection.close()
        return self.end()


def _picture(shape: Shape, body: bytes) -> Picture:
    return Picture(shape.height, shape.width, body, shape.sha256)


def _ended(status: int, job: Job) -> Refused:
    if status == -signal.SIGXCPU:
        setting = "XYLEM_MEDIA_SOUND_DECODE_S" if job.kind == "audio" else "XYLEM_MEDIA_DECODE_S"
        return Refused(f"decoding it takes more than {job.cpu_s} s of CPU time ({setting})")
    log.warning("media_decoder_ended", status=status, kind=job.kind, size=job.size)
    return Refused("its decoder failed on it")
