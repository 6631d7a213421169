"""The figures of a soak: a table, a plot, and what is in the line of JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from tests.chaos.run import Report
from tests.soak.clients import Clients
from tests.soak.growth import Point, growth
from tests.soak.sampler import Sampler

_MB = 1e6


class Found(NamedTuple):
    """Growth in an hour, as a share; by process, and of all keys."""

    memory: dict[str, float]
    descriptors: dict[str, float]
    keys: dict[str, float]  # `count` and `bytes`

    @classmethod
    def of(cls, sampler: Sampler) -> "Found":
        steady = sampler.steady()

        def grown(points: Mapping[str, Sequence[Point]]) -> dict[str, float]:
            shares = {name: growth(seen, sampler.began, sampler.ended) for name, seen in points.items()}
            return {name: share for name, share in shares.items() if share is not None}

        return cls(
            grown({process[0]: sampler.memory[process] for process in steady}),
            grown({process[0]: sampler.descriptors[process] for process in steady}),
            grown({"count": sampler.keys["all"], "bytes": sampler.key_bytes["all"]}),
        )


def as_json(report: Report, clients: Clients, found: Found, left: Counter[str] | None) -> dict[str, float | None]:
    parts = {name: max(shares.values(), default=None) for name, shares in found._asdict().items()}
    known = [share for share in parts.values() if share is not None]
    return {
        "soak_growth": round(max(known), 4) if len(known) == len(parts) else None,
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
        counted = growth(sampler.keys[kind], sampler.began, sampler.ended)
        sized = growth(sampler.key_bytes[kind], sampler.began, sampler.ended)
        table.add_row(f"keys {kind}", "count", *_ends(sampler.keys[kind], sampler, 1), _share(counted))
        table.add_row("", "kB", *_ends(sampler.key_bytes[kind], sampler, 1e3), _share(sized))
    table.add_row("XYLEM_FILES", "files", *_ends(sampler.files, sampler, 1), "")
    out.print(table)
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
    _lines(memory, sampler, {f"{name} {pid}": seen for (name, pid), seen in sampler.memory.items()}, _MB)
    memory.set(title="memory of each process alone, MB")
    _lines(descriptors, sampler, {f"{name} {pid}": seen for (name, pid), seen in sampler.descriptors.items()}, 1)
    descriptors.set(title="file descriptors")
    _lines(keys, sampler, sampler.keys, 1)
    keys.set(title="Redis keys by kind", yscale="symlog")
    _lines(sizes, sampler, sampler.key_bytes, _MB)
    sizes.set(title="Redis keys, MB", yscale="symlog")
    figure.savefig(path, dpi=90)


def _lines(axis: Axes, sampler: Sampler, series: Mapping[str, Sequence[Point]], unit: float) -> None:
    for name, points in series.items():
        axis.plot([(at - sampler.began) / 60 for at, _ in points], [v / unit for _, v in points], label=name, lw=0.8)
    axis.set(xlabel="minutes")
    axis.legend(fontsize=5, ncols=2)
