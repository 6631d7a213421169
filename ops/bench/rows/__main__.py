"""`make bench NAME=rows`."""

from ops.bench.parts import bench, parts_in
from ops.bench.rows import report

if __name__ == "__main__":
    bench(
        "rows",
        "Measure what the feature list promises of single rows, and what all of them cost a plain chat.",
        report,
        parts_in("ops.bench.rows", report),
    )
