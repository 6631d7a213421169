"""`xylem lora`: LoRA adapters, added and exchanged while engines run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.client import HERE, AdminKey, Url, admin_key, checked, connected
from app.cli.report import err, listing, out, refuse

lora = typer.Typer(
    name="lora",
    help="LoRA adapters: each is a model of its own. In the whole deployment, and for good.",
    no_args_is_help=True,
)
PATH = "/admin/loras"

Name = Annotated[str, typer.Argument(help="By which clients ask for it, as their model.")]
Source = Annotated[
    str,
    typer.Argument(
        help="A folder or tar file that workers see, s3://bucket/folder, hf://team/name, or https://host/adapter.tar."
    ),
]
Sha256 = Annotated[str, typer.Option("--sha256", help="Of the tar file or folder; needed for what comes by HTTP.")]


@lora.command()
def add(
    name: Name,
    source: Source,
    model: Annotated[str, typer.Option("--model", help="That it is made for.")],
    pools: Annotated[
        str, typer.Option("--pools", metavar="A,B", help="That load it; all of the model if not given.")
    ] = "",
    min_workers: Annotated[
        int, typer.Option("--min-workers", min=0, help="Of each pool, that have it before anybody asks.")
    ] = 1,
    sha256: Sha256 = "",
    url: Url = HERE,
    key: AdminKey = None,
) -> None:
    """Add one, and wait until workers have it."""
    body = {
        "name": name,
        "source": _source(source),
        "model": model,
        "min_workers": min_workers,
        "sha256": sha256,
        "pools": [pool.strip() for pool in pools.split(",") if pool.strip()],
    }
    with connected(url, admin_key(url, key)) as client:
        _report(checked(client.post(PATH, json=body)))


@lora.command()
def swap(name: Name, source: Source, sha256: Sha256 = "", url: Url = HERE, key: AdminKey = None) -> None:
    """Put other weights under a name. When this ends, nothing begins with the old ones any more."""
    with connected(url, admin_key(url, key)) as client:
        _report(checked(client.post(f"{PATH}/{name}", json={"source": _source(source), "sha256": sha256})))


@lora.command()
def remove(name: Name, url: Url = HERE, key: AdminKey = None) -> None:
    """Take one away. What runs is finished."""
    with connected(url, admin_key(url, key)) as client:
        checked(client.delete(f"{PATH}/{name}"))
    err.print(f"removed {name}", markup=False)


@lora.command("list")
def show(url: Url = HERE, key: AdminKey = None) -> None:
    """Show all of them: versions, workers that have them, and what went wrong."""
    from rich.markup import escape
    from rich.table import Column

    with connected(url, admin_key(url, key)) as client:
        adapters = checked(client.get(PATH))["data"]
    columns = (Column(name, no_wrap=True) for name in ("name", "model", "version", "workers"))
    table = listing(*columns, "source", "failed")
    for one in adapters:
        failures = "; ".join(f"{worker}: {reason}" for worker, reason in one["failed"].items())
        cells = (one["name"], one["model"], str(one["version"]), str(len(one["workers"])), one["source"], failures)
        table.add_row(*map(escape, cells))
    out.print(table)


def _source(text: str) -> str:
    """A path as workers on this host see it."""
    return text if "://" in text else str(Path(text).absolute())


def _report(adapter: dict[str, Any]) -> None:
    for worker, reason in adapter["failed"].items():
        err.print(f"{worker}: {reason}", markup=False)
    if adapter["failed"] and not adapter["workers"]:
        name = adapter["name"]
        refuse(f"no worker could load {name}. They go on trying; to give it up: xylem lora remove {name}", code=1)
    err.print(f"{adapter['name']}@{adapter['version']}: {len(adapter['workers'])} workers", markup=False)
    for pool, count in adapter.get("missing", {}).items():  # an older API doesn't tell
        err.print(f"{pool}: {count} fewer than wanted; what starts there loads it", markup=False)
