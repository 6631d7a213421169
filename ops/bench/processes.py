"""Child processes that never outlive the benchmark, and waiting for them."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from tests import forks
from tests.stack import ROOT

_TERM_S = 15.0  # from SIGTERM to SIGKILL
_OURS = ("celery", "xylem")
_LOG_LINES = 5  # of a failed process, in the error
Numbers = list[list[float]]


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


def finished(
    command: Sequence[str], log: Path, limit_s: float, what: str, env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:  # fmt: skip
    """Runs it to its end. Raises: Unavailable when it fails, or takes longer."""
    with process(command, log, env, cwd) as child:
        wait_for(child, log, limit_s, what)


def wait_for(child: "subprocess.Popen[bytes]", log: Path, limit_s: float, what: str) -> None:
    """Blocks until it has ended. Raises: Unavailable when it fails, or takes longer."""
    try:
        code = child.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what} took over {limit_s:.0f} s: {tail(log)}") from None
    if code:
        raise Unavailable(f"{what} failed: {tail(log)}")


def side_by_side(module: str, arguments: Sequence[Sequence[object]], directory: Path, limit_s: float) -> Numbers:
    """The last line of each process of the module, one for each of the arguments. Raises: Unavailable."""
    logs = [directory / f"process-{number}.log" for number in range(len(arguments))]
    with ExitStack() as up:
        runs = [
            up.enter_context(process([sys.executable, "-m", module, *map(str, own)], log))
            for own, log in zip(arguments, logs, strict=True)
        ]
        for log, run in zip(logs, runs, strict=True):
            wait_for(run, log, limit_s, f"a process of {module}")
    return [[float(x) for x in log.read_text().splitlines()[-1].split()] for log in logs]


def figure_of(module: str, arguments: Sequence[str], directory: Path, key: str, *, fails: bool = False) -> float | None:
    """A figure that a module prints as JSON, in a line of its own. `fails`: it counts also of one that fails.

    Raises: Unavailable.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / f"{module}.log"
    with log.open("w") as err:
        command = [sys.executable, "-m", module, *arguments]
        run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=err, text=True, check=False)
        err.write(run.stdout)
    figures = [line for line in run.stdout.splitlines() if line.startswith("{") and f'"{key}"' in line]
    if not figures or (run.returncode and not fails):
        raise Unavailable(f"{module} failed: {log}")
    figure: float | None = json.loads(figures[-1])[key]
    return figure


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
