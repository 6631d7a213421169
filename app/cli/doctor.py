"""`xylem doctor`: what is installed, what can run, and what to do about the rest."""

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.report import listing, out

_SIGNS = {"ok": "[green]✓[/]", "warn": "[yellow]![/]", "fail": "[red]✗[/]"}


def doctor(
    redis: Annotated[str | None, typer.Option(help="The Redis to ask [XYLEM_REDIS_URL].")] = None,
    pools: Annotated[Path | None, typer.Option(help="The pools file to read [XYLEM_POOLS_FILE].")] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say what is installed, which engines can run, whether Redis answers. Exit code 1 if a check fails."""
    from rich.markup import escape

    from app.cli.checks import run_checks

    checks = run_checks(redis, pools)
    if json:
        typer.echo(jsonlib.dumps([asdict(check) for check in checks], indent=2))
    else:
        table = listing("", "", "found", "what to do")
        for check in checks:
            table.add_row(_SIGNS[check.state], check.name, escape(check.found), escape(check.advice))
        out.print(table)
    if any(check.state == "fail" for check in checks):
        raise typer.Exit(1)
