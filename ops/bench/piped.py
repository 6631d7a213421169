"""Another process that answers each line with a line, and turns of two sides that are compared."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from ops.bench.processes import Unavailable, tail

T = TypeVar("T")
Say = Callable[[str], None]


class Piped:
    def __init__(self, child: "subprocess.Popen[str]", log: Path) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._in: IO[str] = child.stdin
        self._out: IO[str] = child.stdout
        self._log = log

    def ask(self, line: str = "", beginning: str = "") -> str:
        """The line of the answer: the next with this beginning, as engines print others. Raises: Unavailable."""
        self._in.write(f"{line}\n")
        self._in.flush()
        return self.answer(beginning)

    def answer(self, beginning: str = "") -> str:
        for line in self._out:
            if line.startswith(beginning):
                return line
        raise Unavailable(f"it ended: {tail(self._log)}")


@contextmanager
def piped(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[Piped]:
    """The process, from when it has printed `ready`; it and all that it starts are killed. Raises: Unavailable."""
    with (
        log.open("w") as err,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, cwd=cwd,
            env=os.environ | (env or {}), start_new_session=True,
        ) as child,
    ):  # fmt: skip
        try:
            other = Piped(child, log)
            other.answer("ready")
            yield other
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def in_turns(
    count: int, one: Callable[[int], T], other: Callable[[int], T], say: Say, *, warm_up: bool = True
) -> list[tuple[T, T]]:
    """The results of both sides in each turn: neither is always the first.

    `warm_up`: with a turn 0, which doesn't count.
    """
    pairs = []
    for turn in range(0 if warm_up else 1, count + 1):
        say(f"turn {turn} of {count}")
        pair = (one(turn), other(turn)) if turn % 2 else (other(turn), one(turn))[::-1]
        if turn:
            pairs.append(pair)
    return pairs
