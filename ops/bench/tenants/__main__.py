"""`make bench NAME=tenants`."""

from ops.bench import console
from ops.bench.parts import bench
from ops.bench.tenants import cpu, report, shares, usage

PARTS = {
    "shares": shares.measured,
    "prompts": shares.prompts_measured,
    "cpu": cpu.measured,
    "usage": usage.measured,
    "console": console.measured,
}

if __name__ == "__main__":
    about = "Measure tenants: shares of full engines, a quiet one beside two floods, CPU, usage, and the console."
    bench("tenants", about, report, PARTS)
