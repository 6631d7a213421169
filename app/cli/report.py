"""The commands' output: results to stdout, everything else to stderr."""

import sys
from typing import TYPE_CHECKING, NoReturn

import structlog
import typer
from rich.console import Console

if TYPE_CHECKING:  # loaded with the first table
    from rich.table import Column, Table

# Where it is no terminal, nothing is cut or wrapped: a file or a program reads it.
_UNBOUND = 100_000
out = Console(highlight=False, width=None if sys.stdout.isatty() else _UNBOUND)
err = Console(stderr=True, highlight=False)


def log_to_stderr() -> None:
    """structlog's own default is stdout. The API and workers set up logs of their own."""
    if not structlog.is_configured():
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def listing(*columns: "Column | str") -> "Table":
    """A table in which a narrow terminal folds what is long, and cuts nothing."""
    from rich.table import Column, Table

    all_columns = [column if isinstance(column, Column) else Column(column) for column in columns]
    for column in all_columns:
        column.overflow = "fold"
    return Table(*all_columns, box=None, padding=(0, 2, 0, 0), header_style="dim")


def refuse(reason: str, *, code: int = 2) -> NoReturn:
    """One line on stderr, then exit. Code 2: wrong arguments or settings; 1: it failed."""
    err.print("[red]xylem:[/]", end=" ")
    err.print(reason, markup=False, soft_wrap=True)
    raise typer.Exit(code)
