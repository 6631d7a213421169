"""The tables and the plot of a report whose parts are independent of each other.

A part's raw values are under `<figure>_values`, and all of them are drawn.
"""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from ops.bench.panels import panels
from ops.bench.parts import Results

_VALUES = "_values"


def tables(results: Results) -> Iterator[Table]:
    """None but that of the targets."""
    del results
    return iter(())


def plot(results: Results, path: Path) -> None:
    """Each figure's values in order, a panel for each."""
    names = [name for name in results if name.endswith(_VALUES)]
    with panels(path, (4 * max(1, len(names)), 4), 1, max(1, len(names))) as axes:
        for ax, name in zip(axes, names, strict=False):
            ax.plot(sorted(results[name]), "o-")
            ax.set(xlabel="values, in order", title=name.removesuffix(_VALUES))
