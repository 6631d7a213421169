"""`make bench NAME=welcome`."""

from ops.bench.parts import bench, parts_in
from ops.bench.welcome import report

if __name__ == "__main__":
    bench("welcome", "Measure the first hour of a newcomer.", report, parts_in("ops.bench.welcome", report))
