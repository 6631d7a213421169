"""Child processes that never outlive the benchmark, and waiting for them."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests import forks

_TERM_S = 15.0  # from SIGTERM to SIGKILL
_OURS = ("celery", "xylem")
_LOG_LINES = 5  # of a failed process, in the error


class Unavailable(Exception):
    """A system can't be started, or a measurement can't be made; the message says why."""


@contextmanager
def process(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`command` in a process group of its own, so that Ctrl-C reaches it through us and in order.

    Its output goes to `log`. On leaving: SIGTERM, up to 15 s, then SIGKILL for all that is left of the group.
    """
    with log.open("wb") as out:
        try:
            child = _started(command, log, out, {**os.environ, **(env or {})}, cwd)
        except OSError as exc:
            raise Unavailable(f"{shlex.join(command)}: {exc.strerror}") from exc
    try:
        yield child
    finally:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_TERM_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _started(
    command: Sequence[str], log: Path, out: IO[bytes], env: dict[str, str], cwd: Path | None
) -> "subprocess.Popen[bytes]":
    if forks.own_server is not None and Path(command[0]).name in _OURS and cwd is None:  # in a test
        return forks.Forked([*command], Path.cwd(), env, log)
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True, cwd=cwd
    )


def wait_until(ready: Callable[[], bool], timeout_s: float, children: Mapping[Path, subprocess.Popen[bytes]]) -> None:
    """Blocks until `ready()`; an OSError from it means not yet. `children` is by log file.

    Raises: Unavailable, with the end of a log, when the time is over or a child has ended.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        with suppress(OSError):
            if ready():
                return
        for log, child in children.items():
            if child.poll() is not None:
                raise Unavailable(f"ended with code {child.returncode} while starting: {tail(log)}")
        if time.monotonic() > deadline:
            raise Unavailable(f"not ready after {timeout_s:.0f} s: {tail(next(iter(children)))}")
        time.sleep(0.1)


def tail(log: Path) -> str:
    """The last lines of a log, on one line."""
    lines = log.read_text(errors="replace").strip().splitlines()[-_LOG_LINES:]
    return f"{log.name}: " + (" | ".join(lines) or "(empty)")
