"""`make bench NAME=overload`."""

from ops.bench.overload import report
from ops.bench.overload.load import load
from ops.bench.overload.worst import worst_requests
from ops.bench.parts import bench

PARTS = {"load": load, "worst": worst_requests}

if __name__ == "__main__":
    about = "Measure overload: five times the capacity, clients that wait, and the worst requests beside others."
    bench("overload", about, report, PARTS)
