"""The output of engines' processes: the reason why one ends is there, and vLLM's own error says only that it is."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_BEGINNING = re.compile(r"^(?:\(.*?\) \w+ \S+ \S+ \[\S+\] ?|\[\S+ \S+\] )")  # of a line of vLLM's, or SGLang's
_RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?:: .+)?")  # behind a traceback
_FILE = re.compile(r'File ".*?([^/"]+)", line')
_NO_REASON = ("root cause", "stack trace", "SystemExit")


class Log:
    """A file to which this process, and those that it starts, write their standard output and errors."""

    def __init__(self, path: Path) -> None:
        self._path, self._from = path, 0
        path.touch()

    def begin(self) -> None:
        """Makes the next reason be looked for only from here on."""
        self._from = self._path.stat().st_size

    def reason(self, said: str) -> str:
        """The first error that was raised, if `said` only points to it."""
        if not any(words in said for words in (*_NO_REASON, "died", "ended", "exit")):
            return said
        text = self._path.read_bytes()[self._from :].decode(errors="replace")
        lines = ["", ""] + [content for line in text.splitlines() if (content := _BEGINNING.sub("", line)).strip(" ^~")]
        for at, code, line in zip(lines, lines[1:], lines[2:], strict=False):
            if _RAISED.fullmatch(line) and not any(words in line for words in _NO_REASON):
                return line if ":" in line else f"{line}: {code.strip()} ({_file(at)})"
        return said


def _file(line: str) -> str:
    """The file of a traceback's line."""
    match = _FILE.search(line)
    return match[1] if match else "?"


@contextmanager
def logged(path: Path) -> Iterator[tuple[Log, TextIO]]:
    """The log, and where errors went before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    before = [os.dup(number) for number in (1, 2)]
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    try:
        with os.fdopen(os.dup(before[1]), "w") as terminal:
            yield Log(path), terminal
    finally:
        for number, old in zip((1, 2), before, strict=True):
            os.dup2(old, number)
            os.close(old)
