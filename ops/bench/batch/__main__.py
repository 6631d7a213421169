"""Runs the parts, prints tables, writes plot and figures; the last line printed is JSON."""

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from app.errors import SettingsError
from ops.bench.batch import report
from ops.bench.batch.alone import Say, alone
from ops.bench.batch.beside import beside, short
from ops.bench.batch.intake import intake
from ops.bench.batch.plot import plot
from ops.bench.load import tools_dir
from ops.bench.processes import Unavailable
from ops.bench.session import measuring


class Part(StrEnum):
    alone = "alone"
    beside = "beside"
    short = "short"
    intake = "intake"


_PARTS = {Part.alone: alone, Part.beside: beside, Part.short: short, Part.intake: intake}


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Shorter: about ten minutes.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts only.")] = None,
    out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
) -> None:
    """Measure batches: alone, beside others, and a large file."""
    shown = Console(width=None if sys.stdout.isatty() else 160)
    results: dict[str, Any] = {}
    reasons: list[str] = []
    began = time.monotonic()
    with measuring("batch", out) as (out_dir, progress, task):
        say: Say = lambda what: progress.update(task, description=what)  # noqa: E731
        for part in Part:
            if only and part not in only:
                reasons.append(f"{part}: not asked for")
                continue
            try:
                if part in (Part.beside, Part.short):
                    tools_dir()
                results |= _PARTS[part](out_dir / part, quick, say)
            except (Unavailable, SettingsError) as exc:
                reasons.append(f"{part}: {exc}")
    shown.print(*report.tables(results), sep="\n")
    for reason in reasons:
        shown.print(f"not measured: {reason}", style="yellow", markup=False)
    plot(results, out_dir / "report.png")
    (out_dir / "results.json").write_text(json.dumps(results))
    shown.print(f"{time.monotonic() - began:.0f} s; plot, figures and logs: {out_dir}", markup=False)
    print(report.json_line(results), flush=True)


if __name__ == "__main__":
    typer.run(main)
