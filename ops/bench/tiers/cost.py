"""What tiers cost a pool that has none: CPU time of a request in the API, against the tree before there were tiers."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ops.bench.load import System, run_load
from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import xylem
from tests.stack import ROOT

BEFORE = "0c4c2b9"  # the last commit without tiers
_POOL = {"model": "bench", "engine": "mock", "block_size": 64, "max_running": 256, "args": {"speedup": float("inf")}}
_LOAD = [
    "--concurrency",
    "64",
    "--max-tokens",
    "1",
    "--prompt",
    "unique",
    "--prompt-words",
    "200",
    "--max-seconds",
    "30",
]
_PAIRS = 14


def measured(out_dir: Path, size: Size, say: Say) -> dict[str, Any]:
    """`no_tier_cost`: medians of the pairs. Raises: Unavailable."""
    out_dir.mkdir(parents=True, exist_ok=True)
    requests, pairs = size.of(3000, 300, 16), size.of(_PAIRS, _PAIRS, 1)
    ratios = []
    with _tree(out_dir / "before") as before:
        say("loading both systems")
        with xylem(out_dir / "old", _POOL, 1, root=before) as old, xylem(out_dir / "new", _POOL, 1) as new:
            for system in (old, new):
                _cpu_ms(system, out_dir / "warm.log", 0, requests)
            for pair in range(pairs):
                say(f"pair {pair + 1} of {pairs}")
                order = (old, new) if pair % 2 else (new, old)  # neither is always the first
                cost = {id(s): _cpu_ms(s, out_dir / f"{pair}.log", pair + 1, requests) for s in order}
                ratios.append(cost[id(new)] / cost[id(old)])
    return {"no_tier_cost": statistics.median(ratios), "no_tier_pairs": ratios}


def _cpu_ms(system: System, log: Path, seed: int, requests: int) -> float:
    line = run_load(system, [*_LOAD, "--seed", str(seed), "--requests", str(requests)], log)
    return 1e3 * float(line["cpu"]["api"]["cpu_s"]) / int(line["ok"])


@contextmanager
def _tree(path: Path) -> Iterator[Path]:
    """Raises: Unavailable without the repository's history."""
    made = subprocess.run(
        ["git", "worktree", "add", "--detach", str(path.absolute()), BEFORE],
        cwd=ROOT,
        check=False,
        capture_output=True,
    )
    if made.returncode:
        raise Unavailable(f"no tree of {BEFORE}: {made.stderr.decode().strip()[-200:]}")
    try:
        yield path.absolute()
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(path.absolute())], cwd=ROOT, check=True)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        found = measured(Path(folder), Size.asked(), lambda what: print(what, file=sys.stderr))
    print(json.dumps(found))
