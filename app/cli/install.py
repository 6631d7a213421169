"""`xylem install`: an engine's packages, as the lock files of this release name them."""

from enum import StrEnum
from typing import Annotated

import typer

from app.cli.report import err, refuse


class Packages(StrEnum):
    cpu = "cpu"
    gpu = "gpu"
    sglang = "sglang"
    images = "images"


def install(
    what: Annotated[
        Packages,
        typer.Argument(help="vLLM on a CPU; vLLM on a GPU; SGLang; diffusers, which paints, beside one of these."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be installed, and end.")] = False,
) -> None:
    """Install an engine into this environment, by pip, in the versions that were tested."""
    from app.cli import installing

    name = "sglang-gpu" if what == Packages.sglang and _has_gpus() else what.value
    if dry_run:
        err.print(installing.plan(name), markup=False, soft_wrap=True)
        return
    try:
        installing.install(name)
    except installing.NotInstalled as exc:
        refuse(str(exc), code=1)
    err.print("Now: xylem serve MODEL, or xylem up", markup=False)


def _has_gpus() -> bool:
    from app.cli.gpus import usable_gpus

    return bool(usable_gpus())
