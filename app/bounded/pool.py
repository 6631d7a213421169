"""Processes for what a client's data may hang, swell or crash, and the threads that wait for them.

Threads alone would do for speed: native code releases the interpreter's lock. Processes can be bounded and ended.
Decisions 0043 and 0074 have the figures.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import app
from app.bounded.turn_threads import TurnThreads
from app.bounded.wire import Answer, receive_answer, send_job
from app.errors import NoProcess

PROCESSES = min(4, len(os.sched_getaffinity(0)))
STACK = 8 * 2**20  # bytes
# A process that neither works nor ends is ended, so much later than one that works.
_STANDS_S = 30
# So that `app` and what is installed are found; nothing else of our environment, which has passwords.
_ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(Path(app.__path__[0]).parent), *sys.path[1:]]),
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's: each thread takes memory at once, which is bounded
}


class ProcessEnded(Exception):
    """The process has ended with the job in it; another one takes the next job."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status  # as of `subprocess`: a signal's number, negative

    @property
    def took_too_long(self) -> bool:
        return self.status == -signal.SIGXCPU


class ProcessPool:
    """A pool that runs at most `processes` jobs at a time; the others wait for their client's turn.

    A job starts a process if there is none that is free, which takes 0.1 s and more.
    """

    def __init__(self, module: str, *, memory: int, stack: int = STACK, processes: int = PROCESSES) -> None:
        """`module`: what a process runs, which calls `serving.serve`. `memory` and `stack`: bytes that it may have."""
        self._command = [sys.executable, "-m", module, str(memory), str(stack)]
        self._threads = TurnThreads(processes, module.rpartition(".")[2])
        self._own = threading.local()
        self._all: set[_Process] = set()

    async def run(self, job: bytes, data: Sequence[bytes] = (), *, cpu_s: int) -> Answer:
        """`data`: in pieces. `cpu_s`: CPU time that it may take, in seconds. On one event loop only.

        Raises: ProcessEnded, Saturated, NoProcess.
        """
        return await self._threads.run(self._run, job, data, cpu_s)

    def close(self) -> None:
        """Ends the processes, also those at work. Blocks."""
        self._threads.close(wait=False)
        for process in self._all.copy():
            process.end()
        self._threads.close()
        for process in self._all:
            process.close()

    def _run(self, job: bytes, data: Sequence[bytes], cpu_s: int) -> Answer:
        """Runs a job in a thread, each of which has its own process."""
        process: _Process | None = getattr(self._own, "process", None)
        if process is None:
            try:
                process = self._own.process = _Process(self._command)
            except OSError as exc:  # no memory, or no more processes
                raise NoProcess from exc
            self._all.add(process)
        try:
            return process.run(job, data, cpu_s)
        except (EOFError, OSError) as exc:
            self._all.discard(process)
            self._own.process = None
            raise ProcessEnded(process.close()) from exc


class _Process:
    def __init__(self, command: Sequence[str]) -> None:
        """Raises: OSError if none can be started."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    env=_ENVIRONMENT,
                    process_group=0,  # Ctrl-C is for us; it ends when we do
                )
            except OSError:
                ours.close()
                raise
        self._connection = ours

    def run(self, job: bytes, data: Sequence[bytes], cpu_s: int) -> Answer:
        """Raises: EOFError or OSError if the process has ended, or stands still."""
        limit = struct.pack("ll", _STANDS_S * (1 + cpu_s), 0)
        for side in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._connection.setsockopt(socket.SOL_SOCKET, side, limit)
        send_job(self._connection, job, data, cpu_s)
        return receive_answer(self._connection)

    def end(self) -> int:
        """Ends the process, also while a thread waits for its answer. Returns its exit status."""
        self._process.kill()
        return self._process.wait()

    def close(self) -> int:
        """Ends the process when no thread uses it, and closes its connection. Returns its exit status."""
        self._connection.close()
        return self.end()
