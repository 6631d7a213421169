"""`make bench NAME=batch`."""

from ops.bench.batch import report
from ops.bench.batch.alone import alone
from ops.bench.batch.beside import beside, short
from ops.bench.batch.intake import intake
from ops.bench.parts import bench

PARTS = {"alone": alone, "beside": beside, "short": short, "intake": intake}

if __name__ == "__main__":
    bench("batch", "Measure batches: alone, beside others, and a large file.", report, PARTS)
