"""`make bench NAME=batch`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ops.bench.batch import report
from ops.bench.batch.alone import alone
from ops.bench.batch.beside import beside, short
from ops.bench.batch.intake import intake
from ops.bench.parts import run_parts


class Part(StrEnum):
    alone = "alone"
    beside = "beside"
    short = "short"
    intake = "intake"


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Shorter: about ten minutes.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts only.")] = None,
    out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
) -> None:
    """Measure batches: alone, beside others, and a large file."""
    parts = {Part.alone: alone, Part.beside: beside, Part.short: short, Part.intake: intake}
    run_parts("batch", report, parts, only or list(Part), quick, out)


if __name__ == "__main__":
    typer.run(main)
