"""`make bench NAME=engines`."""

from ops.bench.engines import report
from ops.bench.engines.adapter_load import fleet_load
from ops.bench.engines.apart import apart
from ops.bench.engines.contract import contract
from ops.bench.engines.migration import migration
from ops.bench.engines.swap import swap
from ops.bench.engines.throughput import lora_throughput, sglang_throughput
from ops.bench.parts import bench

PARTS = {
    "sglang": sglang_throughput,
    "apart": apart,
    "contract": contract,
    "lora": lora_throughput,
    "load": fleet_load,
    "swap": swap,
    "migrate": migration,
}

if __name__ == "__main__":
    bench(
        "engines",
        "Measure the engines behind the whole system: speed, equal answers, adapters, migration.",
        report,
        PARTS,
    )
