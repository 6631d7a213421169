"""The commands' output: results to stdout, everything else to stderr."""

import sys
from typing import NoReturn

import structlog
import typer
from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def log_to_stderr() -> None:
    """structlog's own default is stdout. The API and workers set up logs of their own."""
    if not structlog.is_configured():
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def refuse(reason: str, *, code: int = 2) -> NoReturn:
    """One line on stderr, then exit. Code 2: wrong arguments or settings; 1: it failed."""
    err.print("[red]xylem:[/]", end=" ")
    err.print(reason, markup=False, soft_wrap=True)
    raise typer.Exit(code)
