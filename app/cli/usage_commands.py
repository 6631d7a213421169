"""`xylem usage`: what requests used."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.report import err, listing, out, refuse

if TYPE_CHECKING:
    from app.usage.database import UsageDatabase
    from app.usage.query import UsageQuery

usage = typer.Typer(
    name="usage",
    help="What requests used, by tenant, key and model: in the SQL database of XYLEM_USAGE_URL.",
    no_args_is_help=True,
)

From = Annotated[str, typer.Option("--from", help="A date, with a time or without; thirty days ago if not given.")]
To = Annotated[str, typer.Option("--to", help="The same; now if not given.")]
Tenants = Annotated[list[str], typer.Option("--tenant", help="Of this tenant only; may be given again and again.")]
_MOST_ROWS = 100_000


@usage.command()
def write() -> None:
    """Write records from Redis to SQL until it is stopped. Several processes may: one leads."""
    argv = [sys.executable, "-m", "workers.usage"]
    os.execv(sys.executable, argv)  # noqa: S606 (this process becomes the writer, so signals reach it)


@usage.command()
def show(
    by: Annotated[str, typer.Option(help="tenant, key, model, task, outcome, batch, minute, hour, day.")] = "tenant",
    since: From = "",
    until: To = "",
    tenant: Tenants = [],  # noqa: B006 (typer reads it only)
) -> None:
    """Show sums by groups: tokens of prompts, of these cached, and of answers; seconds of engines; and the cost."""
    from rich.markup import escape
    from rich.table import Column

    with _database() as database:
        query = _query(by, since, until, tenant)
        rows = database.grouped(query, _MOST_ROWS)
    columns = [
        Column(
            name.removesuffix("_tokens").removesuffix("_s").replace("_", " "),
            justify="left" if kind is str else "right",
        )
        for name, kind in query.columns.items()
    ]
    table = listing(*columns)
    for row in rows:
        table.add_row(*(escape(_shown(row[name])) for name in query.columns))
    out.print(table)


def _shown(value: object) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


@usage.command()
def export(
    file: Annotated[Path, typer.Argument(help="Ends with .csv or .parquet. -: CSV to the standard output.")],
    by: Annotated[str, typer.Option(help="Groups, as with `show`; each request alone if not given.")] = "",
    since: From = "",
    until: To = "",
    tenant: Tenants = [],  # noqa: B006 (typer reads it only)
) -> None:
    """Write records, or sums by groups, to a file."""
    from app.usage.database import COLUMNS
    from app.usage.export import write_csv, write_parquet

    if str(file) != "-" and file.suffix not in (".csv", ".parquet"):
        refuse(f"{file} has to end with .csv or .parquet")
    with _database() as database:
        query = _query(by, since, until, tenant)
        columns: dict[str, type] = query.columns if by else COLUMNS
        pages: Any = [database.grouped(query, _MOST_ROWS)] if by else database.records(query)
        if str(file) == "-":
            write_csv(pages, columns, sys.stdout)
            return
        try:
            if file.suffix == ".csv":
                with file.open("w", encoding="utf-8", newline="") as text:
                    write_csv(pages, columns, text)
            else:
                with file.open("wb") as raw:
                    write_parquet(pages, columns, raw)
        except OSError as exc:
            refuse(f"{file}: {exc.strerror}", code=1)
    err.print(f"wrote {file}", markup=False)


def _query(by: str, since: str, until: str, tenants: list[str]) -> "UsageQuery":
    """Raises: RequestError."""
    from app.usage.query import UsageQuery, grouped_by, period

    return UsageQuery(*period(since, until), grouped_by(by), tenants)


@contextmanager
def _database() -> "Iterator[UsageDatabase]":
    """Opens the database. If it can't be read, the command ends with one line that says so."""
    from app.cli.running_system import command_settings
    from app.errors import UsageDown, XylemError
    from app.usage.database import UsageDatabase

    try:
        database = UsageDatabase(command_settings().usage_database)
        try:
            yield database
        finally:
            database.close()
    except XylemError as exc:
        refuse(exc.message, code=1 if isinstance(exc, UsageDown) else 2)
