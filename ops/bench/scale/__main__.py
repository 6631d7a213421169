"""`make bench NAME=scale`."""

from ops.bench.parts import bench
from ops.bench.scale import report
from ops.bench.scale.index import index
from ops.bench.scale.placing import placing
from ops.bench.scale.tokens import tokens
from ops.bench.scale.watching import watching

PARTS = {"placing": placing, "watching": watching, "index": index, "tokens": tokens}

if __name__ == "__main__":
    bench(
        "scale",
        "Measure placement, the watch for dead workers, the index and tokens by numbers of workers and replicas.",
        report,
        PARTS,
    )
