"""`make bench NAME=disagg`."""

from ops.bench.disagg import report
from ops.bench.disagg.hop import hop
from ops.bench.disagg.load import load
from ops.bench.disagg.threshold import threshold
from ops.bench.disagg.transfer import transfer
from ops.bench.parts import bench

PARTS = {"transfer": transfer, "hop": hop, "load": load, "threshold": threshold}

if __name__ == "__main__":
    bench(
        "disagg",
        "Measure the cost and the benefit of separate prefill workers.",
        report,
        PARTS,
        usual=("transfer", "hop", "load"),
    )
