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

_LOADED = b"loaded\n"
_LOOK_S = 1.0  # how often new processes of the engine are looked for while it loads


class Guard:
    """The worker's side."""

    def __init__(self, worker: str) -> None:
        argv = [sys.executable, "-m", "workers.guard", str(os.getpid()), worker]
        # In a session of its own it hears no Ctrl-C, and isn't killed with the worker's process group.
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)

    def loaded(self) -> None:
        """The engine has all its processes."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_LOADED)
        except BrokenPipeError:  # what has loaded does without
            from app.telemetry import logger

            logger(__name__).error("guard_lost", code=self._process.poll())


def watch(pid: int) -> list[psutil.Process]:
    """Returns when our parent, that process, has ended: its descendants, as last seen."""
    below: list[psutil.Process] = []
    # Not the pipe tells its end: a child that was forked, as engines do, has the other end open as well.
    with suppress(ProcessLookupError):
        ended, loading = os.pidfd_open(pid), True
        while os.getppid() == pid:
            ready = select.select([ended, sys.stdin] if loading else [ended], [], [], _LOOK_S if loading else None)[0]
            if ended in ready:
                break
            loading = loading and not ready  # it says one thing only
            with suppress(psutil.NoSuchProcess):
                below = [p for p in psutil.Process(pid).children(recursive=True) if p.pid != os.getpid()]
    return below


def clean_up(worker: str, left: list[psutil.Process]) -> None:
    """Kills what is left, and takes the lease away."""
    for process in left:
        with suppress(psutil.NoSuchProcess):  # psutil looks whether the number is another process's by now
            for child in process.children(recursive=True):
                child.kill()
            process.kill()
    # Only now: it costs memory, and most guards never come here.
    import redis

    from app.ids import WorkerId
    from app.keys import Keys
    from app.settings import load_settings
    from app.store import sync_client

    settings = load_settings()
    with suppress(redis.RedisError, OSError), sync_client(settings.redis_url, 5.0) as client:
        client.unlink(Keys(settings.deployment).worker(WorkerId(worker)))


if __name__ == "__main__":
    clean_up(sys.argv[2], watch(int(sys.argv[1])))
