"""A benchmark of several parts: runs them, prints tables, writes plot and figures; the last line printed is JSON."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.table import Table

from app.errors import SettingsError
from ops.bench.processes import Unavailable
from ops.bench.session import measuring

Results = Mapping[str, Any]
Say = Callable[[str], None]
# (directory, whether it is a quick run, progress callback) → figures. Raises: Unavailable, SettingsError.
Part = Callable[[Path, bool, Say], dict[str, Any]]


class Report(Protocol):
    """A benchmark's report module."""

    TITLE: str
    TARGETS: dict[str, tuple[float, bool] | None]  # the target, and whether it is a minimum; the keys of the JSON line

    def tables(self, results: Results) -> Iterable[Table]: ...
    def plot(self, results: Results, path: Path) -> None: ...


def bench(name: str, about: str, report: Report, parts: Mapping[str, Part], usual: Sequence[str] = ()) -> None:
    """The command of a benchmark. `usual`: the parts that run if none is named; all if not given."""

    def known(part: str) -> str:
        if part not in parts:
            raise typer.BadParameter(f"there are {', '.join(parts)}")
        return part

    def command(
        quick: Annotated[bool, typer.Option(envvar="QUICK", help="Fewer and shorter runs: under ten minutes.")] = False,
        only: Annotated[
            list[str] | None, typer.Option(help="Run these parts only.", parser=known, metavar="|".join(parts))
        ] = None,
        out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
    ) -> None:
        run_parts(name, report, parts, only or usual or list(parts), quick, out)

    command.__doc__ = about
    typer.run(command)


def run_parts(
    name: str, report: Report, parts: Mapping[Any, Part], chosen: Sequence[str], quick: bool, out: Path
) -> None:
    """Runs the parts; one that can't be measured here doesn't stop the others."""
    shown = Console(width=None if sys.stdout.isatty() else 200)
    results: dict[str, Any] = {}
    reasons: list[str] = []
    began = time.monotonic()
    with measuring(name, out) as (out_dir, progress, task):
        for part in chosen:
            try:
                results |= parts[part](out_dir / part, quick, lambda what: progress.update(task, description=what))
            except (Unavailable, SettingsError) as exc:
                reasons.append(f"{part}: {exc}")
    shown.print(_verdicts(report, results), *report.tables(results), sep="\n")
    for reason in dict.fromkeys([*reasons, *results.get("reasons", [])]):
        shown.print(f"not measured: {reason}", style="yellow", markup=False)
    report.plot(results, out_dir / "report.png")
    (out_dir / "results.json").write_text(json.dumps(results))
    shown.print(f"{time.monotonic() - began:.0f} s; plot, figures and logs: {out_dir}", markup=False)
    print(json.dumps({key: _rounded(results.get(key)) for key in report.TARGETS}), flush=True)


def table(title: str, *columns: str, left: Sequence[str] = ("measured",)) -> Table:
    """A table of figures: aligned right, except the columns in `left`."""
    made = Table(title=title)
    for column in columns:
        made.add_column(column, justify="left" if column in left else "right")
    return made


def _verdicts(report: Report, results: Results) -> Table:
    made = table(report.TITLE, "measured", "value", "aimed at", "")
    for key, target in report.TARGETS.items():
        value = results.get(key)
        if target is None:
            aim = mark = ""
        else:
            limit, floor = target
            aim = f"{'≥' if floor else '≤'} {limit:,.4g}"
            met = None if value is None else value >= limit if floor else value <= limit
            mark = {True: "[green]met[/]", False: "[red]missed[/]", None: "[yellow]not measured[/]"}[met]
        made.add_row(key, "-" if value is None else f"{value:,.4g}", aim, mark)
    return made


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
