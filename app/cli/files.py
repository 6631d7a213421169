"""`xylem files`: files of batches that the server keeps."""

from datetime import datetime
from typing import Annotated

import typer

from app.cli.client import HERE, Key, Url, checked, connected
from app.cli.report import err, listing, out

files = typer.Typer(name="files", help="Files of batches that the server keeps.", no_args_is_help=True)
PATH = "/v1/files"


@files.command("list")
def show(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 100,
    purpose: Annotated[str | None, typer.Option(help="batch, batch_output, image, video.")] = None,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Show the newest files of your key."""
    from rich.markup import escape
    from rich.table import Column

    params = {"limit": limit} | ({"purpose": purpose} if purpose else {})
    with connected(url, key) as client:
        page = checked(client.get(PATH, params=params))
    id_ = Column("id", no_wrap=True)  # whole, to be copied
    table = listing(id_, "created", "expires", "purpose", Column("bytes", justify="right"), "name")
    for file in page["data"]:
        times = (_shown(file[f"{name}_at"]) for name in ("created", "expires"))
        table.add_row(file["id"], *times, file["purpose"], f"{file['bytes']:,}", escape(file["filename"]))
    out.print(table)
    if page["has_more"]:
        err.print("[dim]there are more: --limit[/]")


@files.command()
def remove(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As `list` shows them.")],
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Delete files. A batch that has read its file already goes on."""
    with connected(url, key) as client:
        for id_ in ids:
            checked(client.delete(f"{PATH}/{id_}"))
            err.print(f"removed {id_}", markup=False)


def _shown(at: int | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")
