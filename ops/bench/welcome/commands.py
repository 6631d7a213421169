"""The time until a command says what it does."""

import subprocess
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import typer.main

from app.cli.main import cli
from ops.bench.parts import Say
from ops.bench.size import Size
from tests.stack import BIN


def commands(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Measures `--help` of every command, each at its best of some: the slowest one is told, ms."""
    del directory
    times_ms: list[float] = []
    for names in islice(_names(typer.main.get_command(cli)), size.of(None, None, 2)):
        say(f"xylem {' '.join(names)} --help")
        times_ms.append(min(_help_ms(names) for _ in range(size.of(5, 2, 1))))
    return {"help_ms": max(times_ms), "help_ms_values": times_ms}


def _names(command: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """The names of the command and of all below it, as one types them."""
    yield before
    for name, below in getattr(command, "commands", {}).items():
        yield from _names(below, *before, name)


def _help_ms(names: tuple[str, ...]) -> float:
    began = time.monotonic()
    subprocess.run([BIN / "xylem", *names, "--help"], check=True, capture_output=True)
    return (time.monotonic() - began) * 1e3
