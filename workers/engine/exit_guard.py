"""A process that outlives its worker for a moment: kills the worker's leftover processes, and deletes its lease.

The kernel tells it when the worker ends, in whatever way. Without it a killed worker's engine processes would run on,
and its lease would last for up to two more seconds.
"""

import os
import select
import signal
from collections.abc import Sequence
from contextlib import suppress

import psutil
import redis
from celery.platforms import set_process_title

from app.ids import PoolId, WorkerId
from app.keys import Keys
from app.store import Command, sync_client
from app.store.scripts import TELL
from app.telemetry import logger

log = logger(__name__)

_LOOK_S = 1.0  # how often new processes of the engine are looked for while it loads
_TIMEOUT_S = 2.0  # for Redis: by then the lease has expired anyway
_PIPE_FD = 0  # the guard's file descriptor of the pipe from its worker


class ExitGuard:
    """The worker's side."""

    def __init__(self, redis_url: str, commands: Sequence[Command]) -> None:
        """`commands` are sent when the worker has ended: `lease_ended`.

        The worker may have no threads yet, since the guard is a fork: it starts at once, with everything imported.
        """
        worker = os.getpid()
        pipe_end, self._pipe = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _guard(worker, pipe_end, redis_url, commands)
        os.close(pipe_end)

    def loaded(self) -> None:
        """The engine has started all its processes."""
        try:
            os.write(self._pipe, b"loaded")
        except BrokenPipeError:  # the worker goes on without a guard
            log.error("guard_lost", status=os.waitpid(self._pid, os.WNOHANG)[1])

    def close(self) -> None:
        """Ends the guard: the worker has cleaned up itself."""
        with suppress(ProcessLookupError, ChildProcessError):  # the guard has died before
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._pipe)


def _guard(worker: int, pipe_end: int, redis_url: str, commands: Sequence[Command]) -> None:
    """The guard process; never returns."""
    try:
        # In its own session it gets no Ctrl-C, and isn't killed with the worker's process group.
        os.setsid()
        for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(signal_number, signal.SIG_DFL)
        os.dup2(pipe_end, _PIPE_FD)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the worker's descriptors, with the pipe's other end
        set_process_title("exit guard", f"of {worker}")
        clean_up(redis_url, commands, watch(worker))
    except Exception:
        log.exception("guard_failed")
    finally:
        os._exit(0)


def watch(pid: int) -> list[psutil.Process]:
    """Waits until our parent, process `pid`, has ended; returns its descendants, as last seen."""
    below: list[psutil.Process] = []
    # A pidfd, since the pipe may stay open: forked children of the engine inherit its other end.
    with suppress(ProcessLookupError):
        worker_fd, loading = os.pidfd_open(pid), True
        while os.getppid() == pid:
            with suppress(psutil.NoSuchProcess):
                descendants = [p for p in psutil.Process(pid).children(recursive=True) if p.pid != os.getpid()]
                below = descendants or below  # a process that has just died has none any more
            ready = select.select(
                [worker_fd, _PIPE_FD] if loading else [worker_fd], [], [], _LOOK_S if loading else None
            )[0]
            if worker_fd in ready:
                break
            loading = loading and not ready  # the only message is `loaded`
    return below


def lease_ended(keys: Keys, worker: WorkerId, pool: PoolId) -> list[Command]:
    """Deletes the leases, and tells API replicas, of which only some would look for them soon."""
    return [("UNLINK", keys.worker(worker), keys.member(worker)), ("EVAL", TELL, 1, keys.changed(pool), worker)]


def clean_up(redis_url: str, commands: Sequence[Command], processes: list[psutil.Process]) -> None:
    """Sends the commands, whose keys have one slot of a cluster, and kills the processes `processes`."""
    home = str(commands[0][1])
    with suppress(redis.RedisError, OSError), sync_client(redis_url, _TIMEOUT_S, home) as client:
        for command in commands:
            client.execute_command(*command)
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # psutil notices a reused process id
            for child in process.children(recursive=True):
                child.kill()
            process.kill()
