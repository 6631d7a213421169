"""`make bench NAME=tiers`."""

from ops.bench.parts import bench
from ops.bench.tiers import cost, encryption, loading, oracle, peers, report, restart

PARTS = {
    "loading": loading.measured,
    "encryption": encryption.measured,
    "restart": restart.measured,
    "peers": peers.measured,
    "oracle": oracle.measured,
    "cost": cost.measured,
}

if __name__ == "__main__":
    bench("tiers", "Measure KV in tiers: loading against computing, restarts, pools without tiers.", report, PARTS)
