"""CPU of a plain chat, in turns with this tree and that of the commit before these rows."""

from pathlib import Path
from statistics import median
from typing import Any

from ops.bench.older import cpu_ratios
from ops.bench.parts import Say
from ops.bench.size import Size

BEFORE = "de7bca74"


def cpu(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """CPU of the API for a request that uses none of the rows. Raises: Unavailable."""
    size.leaves("requests against an older tree, which `tiers` has")
    ratios = cpu_ratios(directory, BEFORE, size, say)
    return {"request_cpu_ratio": median(ratios), "request_cpu_ratio_values": ratios}
