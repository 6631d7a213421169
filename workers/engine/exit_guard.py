"""Outlives its worker for a moment: ends what that leaves behind, and tells at once that it is gone.

A process of its own, which hears from the kernel when the worker ends, in whatever way. Without it a killed worker's
engine processes would go on, and its lease would last for its last two seconds.
"""

import os
import select
import signal
from contextlib import suppress

import psutil
import redis
from celery.platforms import set_process_title

from app.store import sync_client
from app.telemetry import logger

log = logger(__name__)

_LOOK_S = 1.0  # how often new processes of the engine are looked for while it loads
_TIMEOUT_S = 2.0  # for Redis: by then the lease is over anyhow
_SAID = 0  # the file descriptor at which the guard hears from its worker


class ExitGuard:
    """The worker's side."""

    def __init__(self, redis_url: str, lease: str) -> None:
        """`lease` is the key that says the worker lives.

        The guard is a fork, so the worker may have no threads yet: it starts in no time, and has all it needs.
        """
        worker = os.getpid()
        heard, self._pipe = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _guard(worker, heard, redis_url, lease)
        os.close(heard)

    def loaded(self) -> None:
        """The engine has all its processes."""
        try:
            os.write(self._pipe, b"loaded")
        except BrokenPipeError:  # what has loaded does without
            log.error("guard_lost", status=os.waitpid(self._pid, os.WNOHANG)[1])

    def close(self) -> None:
        """There is nothing left to guard."""
        with suppress(ProcessLookupError, ChildProcessError):  # it was lost
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._pipe)


def _guard(worker: int, heard: int, redis_url: str, lease: str) -> None:
    """The fork, to its end."""
    try:
        # In a session of its own it hears no Ctrl-C, and isn't killed with the worker's process group.
        os.setsid()
        for told in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(told, signal.SIG_DFL)
        os.dup2(heard, _SAID)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the worker's own, the writing end too
        set_process_title("exit guard", f"of {worker}")
        clean_up(redis_url, lease, watch(worker))
    except Exception:
        log.exception("guard_failed")
    finally:
        os._exit(0)


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
            ready = select.select([ended, _SAID] if loading else [ended], [], [], _LOOK_S if loading else None)[0]
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
