"""The cost of the index of hybrid models for all others: in turns with this tree and that of the commit before it."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from ops.bench.models.hybrid import BEFORE
from ops.bench.older import cpu_ratios, tree
from ops.bench.parts import Say
from ops.bench.piped import Piped, in_turns, piped
from ops.bench.scale.index import index
from ops.bench.size import Size
from ops.bench.systems import valkey
from tests.stack import ROOT

_PAIRS, _FEW = 14, 4


def blocks(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Bytes of Redis for a block, or a point of a hybrid model, that one cache holds. Raises: Unavailable."""
    return {"index_bytes_per_block": index(directory, size, say)["bytes_per_block"]}


def events(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """KV events of an engine without hybrid layers, from its publisher into Redis. Raises: Unavailable."""
    ratios = _pairs(directory, "feeds.py", (size.of(2000, 1000, 20),), size, say)
    return {"events_per_s_ratio": median(ratios), "events_pairs": ratios}


def placing(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Redis' CPU for a placement of 128 blocks. Raises: Unavailable."""
    what = size.of((1000, 1_000_000, 100), (1000, 1_000_000, 50), (16, 2000, 2))
    ratios = _pairs(directory, "placements.py", what, size, say)
    return {"place_redis_ms_1000_ratio": median(ratios), "placing_pairs": ratios}


def cpu(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """CPU of the API for a request of a dense model. Raises: Unavailable."""
    size.leaves("requests against an older tree, which `tiers` has")
    ratios = cpu_ratios(directory, BEFORE, size, say)
    return {"request_cpu_ratio": median(ratios), "cpu_pairs": ratios}


def _pairs(directory: Path, script: str, arguments: Sequence[int], size: Size, say: Say) -> Sequence[float]:
    """The script's figure with this tree over that with the older one, by pair; neither is always the first."""
    with ExitStack() as up:
        older = up.enter_context(tree(directory / "tree", BEFORE))

        def started(name: str, root: Path) -> Piped:
            port = up.enter_context(valkey(directory / name))
            line = [sys.executable, "-P", str(Path(__file__).with_name(script)), *map(str, (port, *arguments))]
            log = directory / f"{script}-{name}.log"
            return up.enter_context(piped(line, log, {"PYTHONPATH": str(root)}, root))

        old, new = started("old", older), started("new", ROOT)
        count = size.of(_PAIRS, _FEW, 1)
        pairs = in_turns(count, lambda _: float(new.ask()), lambda _: float(old.ask()), say, warm_up=False)
    return [new_figure / old_figure for new_figure, old_figure in pairs]
