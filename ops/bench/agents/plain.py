"""An API replica's CPU for a streamed token without tools, next to an older commit."""

import os
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from ops.bench.load import System, run_load
from ops.bench.measures import SMALLEST, STREAMS, api_s_per_million_tokens
from ops.bench.older import tree
from ops.bench.parts import Say
from ops.bench.piped import in_turns
from ops.bench.size import Size
from ops.bench.systems import xylem

# The commit before tools, reasoning and structured output.
BEFORE = os.environ.get("BEFORE", "f8d0bae")
_PAIRS = 14
_POOL = {
    "model": "mock", "engine": "mock", "max_running": 256,
    "args": {"step_ms": 1.0, "step_ms_per_sequence": 0, "total_blocks": 16_384, "prefill_tokens_per_s": 1e7},
}  # fmt: skip


def plain_streams(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """Both commits run side by side and get requests in turns. Raises: Unavailable."""
    pairs, load = size.of(_PAIRS, _PAIRS, 1), [*STREAMS, "--requests", size.of("1280", "384", "16")]
    load += size.of([], [], SMALLEST)
    with (
        tree(out_dir / "tree", BEFORE) as older,
        xylem(out_dir / "before", _POOL, 1, older) as before,
        xylem(out_dir / "after", _POOL, 1) as after,
    ):
        cost = partial(_cost, load=load, out_dir=out_dir)
        costs = in_turns(pairs, partial(cost, after), partial(cost, before), say)
    return {
        "plain_pairs": [(theirs, ours) for ours, theirs in costs],
        "plain_us_per_token": statistics.median(ours for ours, _ in costs),
        "plain_us_per_token_before": statistics.median(theirs for _, theirs in costs),
        "plain_us_per_token_ratio": statistics.median(ours / theirs for ours, theirs in costs),
    }


def _cost(system: System, turn: int, load: list[str], out_dir: Path) -> float:
    """CPU-us a token."""
    options = [*load, "--label", "plain", "--max-seconds", "60", "--seed", str(turn)]
    return api_s_per_million_tokens(run_load(system, options, out_dir / "load.log"))
