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
from ops.bench.disagg import report
from ops.bench.disagg.hop import hop
from ops.bench.disagg.load import load
from ops.bench.disagg.threshold import threshold
from ops.bench.disagg.transfer import Say, transfer
from ops.bench.load import tools_dir
from ops.bench.processes import Unavailable
from ops.bench.session import measuring


class Part(StrEnum):
    transfer = "transfer"
    hop = "hop"
    load = "load"
    threshold = "threshold"


_PARTS = {Part.transfer: transfer, Part.hop: hop, Part.load: load, Part.threshold: threshold}
_USUAL = (Part.transfer, Part.hop, Part.load)


def main(
    quick: Annotated[bool, typer.Option(envvar="QUICK", help="Shorter: about three minutes.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts only.")] = None,
    out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
) -> None:
    """Measure what prefilling on workers of its own costs and brings."""
    shown = Console(width=None if sys.stdout.isatty() else 200)
    results: dict[str, Any] = {}
    reasons: list[str] = []
    began = time.monotonic()
    with measuring("disagg", out) as (out_dir, progress, task):
        say: Say = lambda what: progress.update(task, description=what)  # noqa: E731
        for part in only or _USUAL:
            try:
                tools_dir()
                results |= _PARTS[part](out_dir / part, quick, say)
            except (Unavailable, SettingsError) as exc:
                reasons.append(f"{part}: {exc}")
    shown.print(*report.tables(results), sep="\n")
    for reason in reasons:
        shown.print(f"not measured: {reason}", style="yellow", markup=False)
    report.plot(results, out_dir / "report.png")
    (out_dir / "results.json").write_text(json.dumps(results, indent=1))
    shown.print(f"{time.monotonic() - began:.0f} s; plot, figures and logs: {out_dir}", markup=False)
    print(report.json_line(results), flush=True)


if __name__ == "__main__":
    typer.run(main)
