"""Outlives its worker for a moment: ends what that leaves behind, and tells at once that it is gone.

A process of its own, which hears from the kernel when the worker ends, in whatever way. Without it a killed worker's
engine processes would go on, and its lease would last for its last two seconds.
"""

import os
import select
import subprocess
import sys
from contextlib import suppress

import psutil
import redis

from app.store import sync_client
from app.telemetry import logger

log = logger(__name__)

_LOOK_S = 1.0  # how often new processes of the engine are looked for while it loads
_TIMEOUT_S = 2.0  # for Redis: by then the lease is over anyhow


class ExitGuard:
    """The worker's side."""

    def __init__(self, redis_url: str, lease: str) -> None:
        """`lease` is the key that says the worker lives."""
        argv = [sys.executable, "-m", "workers.engine.exit_guard", str(os.getpid())]
        # In a session of its own it hears no Ctrl-C, and isn't killed with the worker's process group.
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
        self._say(f"{lease} {redis_url}\n")  # not as arguments, which everybody sees

    def loaded(self) -> None:
        """The engine has all its processes."""
        self._say("loaded\n")

    def close(self) -> None:
        """There is nothing left to guard."""
        self._process.kill()
        self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
        except BrokenPipeError:  # what has loaded does without
            log.error("guard_lost", code=self._process.poll())


def watch(pid: int) -> list[psutil.Process]:
    """Returns when our parent, that process, has ended: its descendants, as last seen."""
    below: list[psutil.Process] = []
    # Not the pipe tells its end: a child that was forked, as engines do, has the other end open as well.
    with suppress(ProcessLookupError):
        ended, loading = os.pidfd_open(pid), True
        while os.getppid() == pid:
            with suppress(psutil.NoSuchProcess):
                seen = [p for p in psutil.Process(pid).children(recursive=True) if p.pid != os.getpid()]
                below = seen or below  # one that has just died has none any more
            ready = select.select([ended, sys.stdin] if loading else [ended], [], [], _LOOK_S if loading else None)[0]
            if ended in ready:
                break
            loading = loading and not ready  # it says one thing only
    return below


def clean_up(redis_url: str, lease: str, left: list[psutil.Process]) -> None:
    """Takes the lease away, and kills what is left."""
    with suppress(redis.RedisError, OSError), sync_client(redis_url, _TIMEOUT_S) as client:
        client.unlink(lease)
    for process in left:
        with suppress(psutil.NoSuchProcess):  # psutil looks whether the number is another process's by now
            for child in process.children(recursive=True):
                child.kill()
            process.kill()


if __name__ == "__main__":
    first = b""
    while not first.endswith(b"\n"):  # unbuffered: `select` sees what is left
        first += os.read(sys.stdin.fileno(), 1) or sys.exit()
    key, _, url = first.decode().strip().partition(" ")
    clean_up(url, key, watch(int(sys.argv[1])))
