"""The cost of the index of hybrid models for all others: in turns with this tree and that of the commit before it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from ops.bench.models.hybrid import BEFORE
from ops.bench.older import cpu_ratios, tree
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.route.decision import valkey
from ops.bench.scale.index import index
from ops.bench.size import Size
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
    count, ratios = size.of(_PAIRS, _FEW, 1), list[float]()
    with ExitStack() as up:
        older = up.enter_context(tree(directory / "tree", BEFORE))
        turns = {}
        for name, root in (("old", older), ("new", ROOT)):
            port = up.enter_context(valkey(directory / name))
            turns[name] = up.enter_context(_turns(root, script, (port, *arguments)))
        for pair in range(count):
            say(f"{script}: pair {pair + 1} of {count}")
            figures = {name: turns[name]() for name in sorted(turns, reverse=pair % 2 == 1)}
            ratios.append(figures["new"] / figures["old"])
    return ratios


@contextmanager
def _turns(root: Path, script: str, arguments: Sequence[int]) -> Iterator[Callable[[], float]]:
    """A process of the script with that tree's code; the function has it make one turn. Raises: Unavailable."""
    line = [sys.executable, "-P", str(Path(__file__).with_name(script)), *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(line, cwd=root, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child_input, child_output = child.stdin, child.stdout

        def heard() -> str:
            if not (line := child_output.readline()):
                raise Unavailable(f"{script} ended with the code of {root.name}")
            return line

        def turn() -> float:
            child_input.write("\n")
            child_input.flush()
            return float(heard())

        try:
            heard()
            yield turn
        finally:
            child.kill()
