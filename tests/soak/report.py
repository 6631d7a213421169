"""The figures of a soak: a table, a plot, and what is in the line of JSON."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from tests.chaos.run import Report
from tests.soak.clients import Clients
from tests.soak.growth import LEAST_S, TOO_SHORT, WARM_UP, Point, growth
from tests.soak.sampler import Sampler

_MB = 1e6
_NAMED = 8  # kinds of keys in the plot
_Name = TypeVar("_Name", str, tuple[str, int])


class Found(NamedTuple):
    """Growth in an hour, as a share; by process, and of all keys."""

    memory: dict[str, float]
    descriptors: dict[str, float]
    keys: dict[str, float]  # `count` and `bytes`

    @classmethod
    def of(cls, sampler: Sampler) -> "Found":
        steady = sampler.steady()

        def grown(points: Mapping[str, Sequence[Point]]) -> dict[str, float]:
            shares = {name: growth(series, sampler.began, sampler.ended) for name, series in points.items()}
            return {name: share for name, share in shares.items() if share is not None}

        return cls(
            grown({process[0]: sampler.memory[process] for process in steady}),
            grown({process[0]: sampler.descriptors[process] for process in steady}),
            grown({"count": sampler.keys["all"], "bytes": sampler.key_bytes["all"]}),
        )


def as_json(report: Report, clients: Clients, found: Found, left: Counter[str] | None) -> dict[str, float | None]:
    parts = {name: max(shares.values(), default=None) for name, shares in found._asdict().items()}
    known_parts = [share for share in parts.values() if share is not None]
    return {
        "soak_growth": round(max(known_parts), 4) if len(known_parts) == len(parts) else None,
        **{f"growth_{name}": None if share is None else round(share, 4) for name, share in parts.items()},
        "keys_left": None if left is None else left.total(),
        "requests": report.requests + clients.done.total(),
        "batches": clients.done["batch"],
        "faults": sum(len(took) for fault, took in report.by_fault.items() if fault != "quiet"),
        "lost": report.lost,
        "duplicated": report.duplicated,
        "failed": report.failed + len(clients.wrong),
        "leaked_blocks": report.leaked_blocks,
        "index_wrong": len(report.index.wrong),
    }


def show(
    report: Report, clients: Clients, sampler: Sampler, found: Found, left: Counter[str] | None, out: Console
) -> None:
    table = Table("of", "what", "first quarter", "last quarter", "growth an hour", title="Held under load with faults")
    for name, pid in sampler.steady():
        for what, points, shares, unit in (
            ("memory, MB", sampler.memory[name, pid], found.memory, _MB),
            ("descriptors", sampler.descriptors[name, pid], found.descriptors, 1),
        ):
            table.add_row(name, what, *_ends(points, sampler, unit), _share(shares.get(name)))
    for kind in sorted(sampler.keys, key=lambda kind: (kind != "all", kind)):
        count_growth = growth(sampler.keys[kind], sampler.began, sampler.ended)
        size_growth = growth(sampler.key_bytes[kind], sampler.began, sampler.ended)
        table.add_row(f"keys {kind}", "count", *_ends(sampler.keys[kind], sampler, 1), _share(count_growth))
        table.add_row("", "kB", *_ends(sampler.key_bytes[kind], sampler, 1e3), _share(size_growth))
    table.add_row("XYLEM_FILES", "files", *_ends(sampler.files, sampler, 1), "")
    out.print(table)
    if sampler.ended - sampler.began < LEAST_S:
        out.print(f"not measured: soak_growth and its parts: {TOO_SHORT}")
    if left is not None:
        out.print(f"Keys left when all has expired: {dict(sorted(left.items()))}")
    out.print(f"Faults: { {fault: len(took) for fault, took in sorted(report.by_fault.items())} }")
    out.print(f"Clients: {dict(sorted(clients.done.items()))}, and {report.requests} as in `make chaos`")
    for bad in (*report.bad[:20], *report.index.wrong[:20], *clients.wrong[:20]):
        out.print(bad, markup=False, style="red")


def _ends(points: Sequence[Point], sampler: Sampler, unit: float) -> tuple[str, str]:
    """Medians of the first and of the last quarter."""
    length = (sampler.ended - sampler.began) / 4
    first = [value for at, value in points if at < sampler.began + length]
    last = [value for at, value in points if at > sampler.ended - length]
    return tuple(f"{median(values) / unit:.1f}" if values else "" for values in (first, last))  # type: ignore[return-value]


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"


def plot(sampler: Sampler, path: Path) -> None:
    figure = Figure(figsize=(15, 9), layout="tight")
    (memory, descriptors), (keys, sizes) = figure.subplots(2, 2)
    steady = sampler.steady()
    _lines(memory, sampler, sampler.memory, steady, _MB)
    memory.set(title="memory of each process alone, MB; grey: of those that faults end")
    _lines(descriptors, sampler, sampler.descriptors, steady, 1)
    descriptors.set(title="file descriptors")
    for axis, series, unit in ((keys, sampler.keys, 1), (sizes, sampler.key_bytes, _MB)):
        _lines(axis, sampler, series, _largest(series), unit)
    keys.set(title="Redis keys by kind, the largest named", yscale="symlog")
    sizes.set(title="Redis keys, MB", yscale="log")
    figure.savefig(path, dpi=90)


def _largest(series: Mapping[str, Sequence[Point]]) -> list[str]:
    return sorted(series, key=lambda kind: median(value for _, value in series[kind]), reverse=True)[:_NAMED]


def _lines(
    axis: Axes, sampler: Sampler, series: Mapping[_Name, Sequence[Point]], named: Collection[_Name], unit: float
) -> None:
    """Draws the lines; those that aren't named are grey."""
    for name, points in series.items():
        minutes, values = [(at - sampler.began) / 60 for at, _ in points], [value / unit for _, value in points]
        if name in named:
            axis.plot(minutes, values, label=name if isinstance(name, str) else name[0], lw=1)
        else:
            axis.plot(minutes, values, color="lightgrey", lw=0.5, zorder=0)
    axis.axvspan(0, WARM_UP * (sampler.ended - sampler.began) / 60, alpha=0.1, label="warm-up")
    axis.set(xlabel="minutes")
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
