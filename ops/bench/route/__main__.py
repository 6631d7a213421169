"""Runs the parts, prints tables, writes plot and figures; the last line printed is JSON."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ops.bench.load import tools_dir
from ops.bench.processes import Unavailable
from ops.bench.route import report
from ops.bench.route.decision import Say, decision
from ops.bench.route.events import events
from ops.bench.route.prefix import prefix
from ops.bench.route.replay import replay
from ops.bench.route.simulation import simulation
from ops.bench.session import measuring


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
    """Measure what routing by KV cache costs and brings."""
    shown = Console(width=None if sys.stdout.isatty() else 200)
    results: dict[str, Any] = {}
    reasons: list[str] = []
    with measuring("route", out) as (out_dir, progress, task):
        for part in only or list(Part):
            try:
                tools_dir()
                say: Say = lambda what: progress.update(task, description=what)  # noqa: E731
                results |= _run(part, out_dir / part, quick, say, model_dir)
            except Unavailable as exc:
                reasons.append(f"{part}: {exc}")
    shown.print(*report.tables(results), sep="\n")
    for reason in dict.fromkeys([*reasons, *results.get("reasons", [])]):
        shown.print(f"not measured: {reason}", style="yellow", markup=False)
    report.plot(results, out_dir / "report.png")
    (out_dir / "results.json").write_text(json.dumps(results, indent=1))
    shown.print(f"plot, figures and logs: {out_dir}", markup=False)
    print(report.json_line(results), flush=True)


def _run(part: Part, directory: Path, quick: bool, say: Say, model_dir: Path) -> dict[str, Any]:
    match part:
        case Part.decision:
            return decision(directory, quick, say)
        case Part.events:
            return events(directory, quick, say)
        case Part.simulation:
            return simulation(directory, quick, say)
        case Part.replay:
            return replay(directory, quick, say)
        case Part.prefix:
            return prefix(directory, quick, say, model_dir.resolve())


if __name__ == "__main__":
    typer.run(main)
