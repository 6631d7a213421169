"""A benchmark of several parts: runs them, prints tables, writes plot and figures; the last line printed is JSON."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.table import Table

from app.errors import SettingsError
from ops.bench.figures import Targets, tell
from ops.bench.processes import Unavailable
from ops.bench.session import measuring
from ops.bench.size import Size

Results = Mapping[str, Any]
Say = Callable[[str], None]
# (its folder, size, progress callback) → figures, and perhaps under `missing` why some of them aren't there, by name.
# Raises: Unavailable, SettingsError.
Part = Callable[[Path, Size, Say], dict[str, Any]]


class Report(Protocol):
    """A benchmark's report module."""

    TITLE: str
    TARGETS: Targets

    def tables(self, results: Results) -> Iterable[Table]: ...
    def plot(self, results: Results, path: Path) -> None: ...


def parts_in(package: str, report: Report) -> dict[str, Part]:
    """The parts that the report names, each the function of its name in the package's module of its name."""
    return {name: getattr(import_module(f"{package}.{name}"), name) for name in report.TARGETS}


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
        size = Size.asked(quick)
        run_parts(name, report, parts, only or ([] if size.smallest else usual), size, out)

    command.__doc__ = about
    typer.run(command)


def single(name: str, about: str, figures: Sequence[str], part: Part) -> None:
    """The command of a benchmark of one part, without targets, tables and a plot."""

    def command(
        quick: Annotated[bool, typer.Option(envvar="QUICK", help="Fewer and shorter runs.")] = False,
        out: Annotated[Path, typer.Option(help="Where reports go.")] = Path(".xylem/bench"),
    ) -> None:
        results, missing = dict[str, Any](), dict[str, str]()
        with measuring(name, out) as (out_dir, progress, task):
            try:
                results = part(out_dir, Size.asked(quick), lambda what: progress.update(task, description=what))
            except (Unavailable, SettingsError) as exc:
                missing = dict.fromkeys(figures, str(exc))
        tell(figures, results, missing, out_dir, Console())

    command.__doc__ = about
    typer.run(command)


def run_parts(
    name: str, report: Report, parts: Mapping[Any, Part], chosen: Sequence[str], size: Size, out: Path
) -> None:
    """Runs the parts, all of them if none is chosen; one that can't be measured here doesn't stop the others."""
    console = Console(width=None if sys.stdout.isatty() else 200)
    results: dict[str, Any] = {}
    missing: dict[str, str] = {}
    began = time.monotonic()
    with measuring(name, out) as (out_dir, progress, task):
        for part in chosen or parts:
            (out_dir / part).mkdir()
            try:
                part_results = parts[part](out_dir / part, size, lambda what: progress.update(task, description=what))
                missing |= part_results.pop("missing", {})
                results |= part_results
            except (Unavailable, SettingsError) as exc:
                missing |= dict.fromkeys(report.TARGETS.get(part, [part]), f"{part}: {exc}")
    for part in report.TARGETS.keys() - (chosen or parts):
        missing |= dict.fromkeys(report.TARGETS[part], f"the part {part} was not run")
    console.print(_verdicts(report, results), *report.tables(results), sep="\n")
    report.plot(results, out_dir / "report.png")
    (out_dir / "results.json").write_text(json.dumps(results))
    console.print(f"{time.monotonic() - began:.0f} s; plot, figures and logs: {out_dir}", markup=False)
    tell((key for of in report.TARGETS.values() for key in of), results, missing, out_dir, console)


def table(
    title: str, *columns: str, rows: Iterable[Iterable[object]] = (), left: Sequence[str] = ("measured",)
) -> Table:
    """A table of figures: aligned right, except the columns in `left`."""
    new_table = Table(title=title)
    for column in columns:
        new_table.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        new_table.add_row(*map(str, row))
    return new_table


def _verdicts(report: Report, results: Results) -> Table:
    result_table = table(report.TITLE, "measured", "value", "aimed at", "")
    for key, target in (figure for of in report.TARGETS.values() for figure in of.items()):
        value = results.get(key)
        if target is None:
            aim = mark = ""
        else:
            limit, floor = target
            aim = f"{'≥' if floor else '≤'} {limit:,.4g}"
            is_met = None if value is None else value >= limit if floor else value <= limit
            mark = {True: "[green]met[/]", False: "[red]missed[/]", None: "[yellow]not measured[/]"}[is_met]
        result_table.add_row(key, "-" if value is None else f"{value:,.4g}", aim, mark)
    return result_table
