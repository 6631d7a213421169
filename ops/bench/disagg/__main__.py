"""`make bench NAME=disagg`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ops.bench.disagg import report
from ops.bench.disagg.hop import hop
from ops.bench.disagg.load import load
from ops.bench.disagg.threshold import threshold
from ops.bench.disagg.transfer import transfer
from ops.bench.parts import run_parts


class Part(StrEnum):
    transfer = "transfer"
    hop = "hop"
    load = "load"
    threshold = "threshold"


_USUAL = (Part.transfer, Part.hop, Part.load)


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Shorter: about three minutes.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts only.")] = None,
    out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
) -> None:
    """Measure the cost and the benefit of separate prefill workers."""
    parts = {Part.transfer: transfer, Part.hop: hop, Part.load: load, Part.threshold: threshold}
    run_parts("disagg", report, parts, only or _USUAL, quick, out)


if __name__ == "__main__":
    typer.run(main)
