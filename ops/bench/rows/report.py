"""Targets, a plot. Each line of `TARGETS` is a part: a module here with a function of its name.

A part's raw values are under `<figure>_values`, and all of them are drawn; its tables are of its own figures alone.
"""

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from ops.bench.figures import targets
from ops.bench.panels import panels
from ops.bench.parts import Results

TITLE = "Every row of the feature list"
TARGETS = targets("""
    listed: rows_open <= 0
    beams: beams_equal >= 1
    revoke: revoke_ms_p99 <= 500
    cpu: request_cpu_ratio <= 1.02
    roles: roles_hosts_equal >= 1
    photos: photos_redis_mb <= 32, photos_ttft_ratio <= 1.05
""")
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
