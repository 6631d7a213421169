"""`make bench NAME=rows`."""

from importlib import import_module

from ops.bench.parts import Part, bench
from ops.bench.rows import report


def _part(name: str) -> Part:
    """The function of this name in the module of this name."""
    part: Part = getattr(import_module(f"ops.bench.rows.{name}"), name)
    return part


if __name__ == "__main__":
    bench(
        "rows",
        "Measure what the feature list promises of single rows, and what all of them cost a plain chat.",
        report,
        {name: _part(name) for name in report.TARGETS},
    )
