"""A bounded process, from within: one job after the other, from a socket that is its stdin."""

import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from app.bounded.wire import Answer, receive_job, send_answer


def serve(work: Callable[[bytes, bytes], Answer], *, besides: bool = False) -> None:
    """Ends when the other side does. `work`: from a job and its data to the answer; raises nothing.

    The arguments of the process: bytes of memory and of stack. It writes no file, and leaves no core. `besides`: what
    it has loaded by now does not count as memory.
    """
    memory, stack = map(int, sys.argv[1:3])
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if besides else 0
    for limit, most in (
        (resource.RLIMIT_STACK, stack),
        (resource.RLIMIT_AS, own + memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    with socket.socket(fileno=os.dup(0)) as connection:
        while True:
            try:
                job, data, cpu_s = receive_job(connection)
                _limit_cpu(cpu_s)
                send_answer(connection, work(job, data))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return


def _limit_cpu(seconds: int) -> None:
    """Limits CPU time from now on; the kernel ends the process then. Whole seconds are counted from its beginning."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 1 + seconds, hard))
