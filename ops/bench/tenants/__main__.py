"""`make bench NAME=tenants`."""

from pathlib import Path
from typing import Any

from ops.bench import console
from ops.bench.parts import Say, bench
from ops.bench.tenants import cpu, report, shares, usage


def _console(_directory: Path, _quick: bool, say: Say) -> dict[str, Any]:
    say("the console in Chromium")
    return dict(console.measured())


PARTS = {
    "shares": shares.measured,
    "prompts": shares.prompts_measured,
    "cpu": cpu.measured,
    "usage": usage.measured,
    "console": _console,
}

if __name__ == "__main__":
    about = "Measure tenants: shares of full engines, a quiet one beside two floods, CPU, usage, and the console."
    bench("tenants", about, report, PARTS)
