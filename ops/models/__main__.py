"""`make models`: what of today's architectures runs on the installed engines, and what Xylem knows of it."""

import asyncio
import json
import subprocess
import sys
from typing import Annotated

import typer
from msgspec import to_builtins
from rich.console import Console

from ops.models.architectures import ARCHITECTURES
from ops.models.log import logged
from ops.models.page import PAGE, page
from ops.models.pictures import LOOKS, Seen, seen
from ops.models.rows import FOLDER, forgotten, kept, rows
from ops.models.trial import Row, tried
from tests.forkserver import forks_of
from tests.shallow import shallow_model


def main(
    only: Annotated[list[str] | None, typer.Argument(help="Architectures; else all, and the page is written.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts of which the cached tokens are foretold.")] = 60,
    jobs: Annotated[int, typer.Option(help="Processes, each of which tries its share.")] = 1,
    missing: Annotated[bool, typer.Option(help="Goes on with what an earlier run has not tried.")] = False,
) -> None:
    """Try each architecture; print its cells and one line of JSON. What engines write is in .xylem/matrix/."""
    names = only or list(ARCHITECTURES)
    if not missing:
        forgotten(names, Row)
        forgotten(() if only else LOOKS, Seen)
    remaining_names = [name for name in names if not rows([name], Row)]
    if jobs > 1:
        shares = [remaining_names[number::jobs] for number in range(jobs)]
        command = [sys.executable, "-m", "ops.models", "--prompts", str(prompts)]
        for share in [subprocess.Popen([*command, *share], stdout=subprocess.DEVNULL) for share in shares if share]:
            share.wait()
    elif remaining_names:
        _try(remaining_names, prompts)
    all_rows = rows(names, Row)
    if not only:
        _look([name for name in LOOKS if not rows([name], Seen)])
        if len(all_rows) == len(names):
            PAGE.write_text(page(all_rows, rows(LOOKS, Seen)))
    answering = sum(row.cells["answers"].kind == "right" for row in all_rows)
    wrong = sum(cell.kind == "wrong" for row in all_rows for name, cell in row.cells.items() if "foretold" in name)
    summary = {"rows": len(all_rows), "rows_that_answer": answering, "rows_foretold_wrong": wrong}
    typer.echo(json.dumps(summary | {"minutes": round(sum(row.seconds for row in all_rows) / 60, 1)}))
    typer.echo(json.dumps(to_builtins(all_rows)))
    if len(all_rows) < len(names):
        raise typer.Exit(1)


def _try(names: list[str], prompts: int) -> None:
    with logged(FOLDER / f"{names[0]}.log") as (log, terminal):
        err = Console(file=terminal, width=160)
        for name in names:
            row = asyncio.run(tried(name, shallow_model(), prompts, log))
            kept(row)
            err.print(name, *(f"{column} {cell}" for column, cell in row.cells.items()), sep=" · ", markup=False)


def _look(names: list[str]) -> None:
    """Has models of these types look at pictures or videos, or listen."""
    if not names:
        return
    with logged(FOLDER / "pictures.log") as (_log, terminal), forks_of("vllm"):
        err = Console(file=terminal, width=160)
        for name in names:
            row = asyncio.run(seen(name, shallow_model()))
            kept(row)
            err.print(name, row.starts or row.refused or f"{row.answered} answered", sep=" · ", markup=False)


if __name__ == "__main__":
    typer.run(main)
