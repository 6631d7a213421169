"""The commands' output: results to stdout, everything else to stderr."""

from typing import NoReturn

import typer
from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def refuse(reason: str, *, code: int = 2) -> NoReturn:
    """One line on stderr, then exit. Code 2: wrong arguments or settings; 1: it failed."""
    err.print("[red]xylem:[/]", end=" ")
    err.print(reason, markup=False, soft_wrap=True)
    raise typer.Exit(code)
