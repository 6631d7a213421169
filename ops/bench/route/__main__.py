"""`make bench NAME=route`."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ops.bench.parts import run_parts
from ops.bench.route import report
from ops.bench.route.decision import decision
from ops.bench.route.events import events
from ops.bench.route.prefix import prefix
from ops.bench.route.replay import replay
from ops.bench.route.simulation import simulation
from ops.bench.size import Size


class Part(StrEnum):
    decision = "decision"
    events = "events"
    simulation = "simulation"
    replay = "replay"
    prefix = "prefix"


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Shorter, one seed: about six minutes.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts only.")] = None,
    model_dir: Annotated[Path, typer.Option(help="Hugging Face directory whose tokenizer `prefix` uses.")] = Path(
        ".xylem/models/SmolLM2-135M-Instruct"
    ),
    out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
) -> None:
    """Measure the cost and the benefit of routing by KV cache."""
    parts = {
        Part.decision: decision,
        Part.events: events,
        Part.simulation: simulation,
        Part.replay: replay,
        Part.prefix: partial(prefix, model_dir=model_dir.resolve()),
    }
    run_parts("route", report, parts, only or (), Size.asked(quick), out)


if __name__ == "__main__":
    typer.run(main)
