"""The picture of a report."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure


@contextmanager
def panels(
    path: Path, size: tuple[float, float], rows: int = 1, columns: int = 1, title: str = ""
) -> Iterator[list[Axes]]:
    """Its axes, row by row; it is saved at the end. `size`: inches."""
    figure = Figure(figsize=size, layout="tight")
    yield [*figure.subplots(rows, columns, squeeze=False).flat]
    if title:
        figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=90)
