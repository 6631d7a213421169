"""`make bench NAME=scale`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ops.bench.parts import run_parts
from ops.bench.scale import report
from ops.bench.scale.index import index
from ops.bench.scale.placing import placing
from ops.bench.scale.tokens import tokens
from ops.bench.scale.watching import watching


class Part(StrEnum):
    placing = "placing"
    watching = "watching"
    index = "index"
    tokens = "tokens"


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Shorter: about three minutes.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts only.")] = None,
    out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
) -> None:
    """Measure placement, the watch for dead workers, the prefix index and tokens by numbers of workers and replicas."""
    parts = {Part.placing: placing, Part.watching: watching, Part.index: index, Part.tokens: tokens}
    run_parts("scale", report, parts, only or list(Part), quick, out)


if __name__ == "__main__":
    typer.run(main)
