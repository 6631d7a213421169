"""The cost of tiers for a pool without any: CPU time of a request in the API, against the tree before tiers."""

import statistics
from pathlib import Path
from typing import Any

from ops.bench.older import cpu_ratios
from ops.bench.parts import Say
from ops.bench.size import Size

BEFORE = "0c4c2b9"  # the last commit without tiers


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`no_tier_cost`: the pairs' median. Raises: Unavailable."""
    ratios = cpu_ratios(out_dir, BEFORE, size, say)
    return {"no_tier_cost": statistics.median(ratios), "no_tier_pairs": ratios}
