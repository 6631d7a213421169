"""`xylem assets`: files for other programs, which a wheel carries: dashboards, rules, units, examples."""

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.cli.report import refuse

_CARRIED, _CHECKOUT = Path(__file__).with_name("assets"), Path(__file__).parents[2] / "ops"
# By kind: the folder in a checkout, and its files.
_PLACES = {
    "dashboards": ("observability/grafana/dashboards", "*.json"),
    "rules": ("observability/prometheus", "rules.yml"),
    "acl": ("acl", "*.conf"),
    "systemd": ("systemd", "xylem*"),
    "pools": ("pools", "*.yaml"),
}


class Kind(StrEnum):
    dashboards = "dashboards"
    rules = "rules"
    acl = "acl"
    systemd = "systemd"
    pools = "pools"


def assets(
    kind: Annotated[
        Kind,
        typer.Argument(help="Grafana's dashboards; Prometheus' rules; users of Redis; units for systemd; pools files."),
    ],
    directory: Annotated[Path, typer.Argument(help="Where to write them; made if it isn't there.")],
    force: Annotated[bool, typer.Option("--force", help="Replace files of the same names.")] = False,
) -> None:
    """Write files for other programs into a folder: those of this version."""
    sources = files_of(kind)
    existing = [source.name for source in sources if (directory / source.name).exists()]
    if existing and not force:
        refuse(f"{directory} already has {', '.join(existing)}: --force replaces them")
    directory.mkdir(parents=True, exist_ok=True)
    for source in sources:
        typer.echo(shutil.copyfile(source, directory / source.name))


def files_of(kind: str) -> list[Path]:
    """The kind's files, in the wheel or the checkout."""
    place, pattern = _PLACES[kind]
    folder = _CARRIED / kind if _CARRIED.is_dir() else _CHECKOUT / place
    return sorted(folder.glob(pattern))
