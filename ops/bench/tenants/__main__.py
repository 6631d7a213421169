"""`make bench NAME=tenants`."""

from ops.bench.parts import bench
from ops.bench.tenants import report, shares

PARTS = {"shares": shares.measured, "prompts": shares.prompts_measured}

if __name__ == "__main__":
    bench("tenants", "Measure tenants: their shares of full engines, and a quiet one beside two floods.", report, PARTS)
