"""The tree of an older commit, and what a request costs the API process with it and with this one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ops.bench.load import System, run_load
from ops.bench.parts import Say
from ops.bench.piped import in_turns
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.bench.systems import xylem
from tests.stack import ROOT

_POOL = {"model": "bench", "engine": "mock", "block_size": 64, "max_running": 256, "args": {"speedup": float("inf")}}
_LOAD = [
    "--concurrency", "64", "--max-tokens", "1", "--prompt", "unique", "--prompt-words", "200", "--max-seconds", "30",
]  # fmt: skip
_PAIRS, _FEW = 14, 4
_FEWEST = 128  # requests: the kernel tells CPU time in hundredths of a second


@contextmanager
def tree(path: Path, commit: str) -> Iterator[Path]:
    """A worktree of it. Raises: Unavailable without the repository's history."""
    where = str(path.absolute())
    run = subprocess.run(
        ["git", "worktree", "add", "--detach", where, commit], cwd=ROOT, check=False, capture_output=True
    )
    if run.returncode:
        raise Unavailable(f"no tree of {commit}: {run.stderr.decode().strip()[-200:]}")
    try:
        yield path.absolute()
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", where], cwd=ROOT, check=True, capture_output=True)


def cpu_ratios(out_dir: Path, commit: str, size: Size, say: Say) -> list[float]:
    """CPU time of a plain request in the API process over that with the commit's tree, by pair. Raises: Unavailable."""
    requests, pairs = size.of(3000, 300, _FEWEST), size.of(_PAIRS, _FEW, 1)
    with tree(out_dir / "before", commit) as before:
        say("loading both systems")
        with xylem(out_dir / "old", _POOL, 1, root=before) as old, xylem(out_dir / "new", _POOL, 1) as new:
            cost = partial(_cpu_s, out_dir=out_dir, requests=requests)
            costs = in_turns(pairs, partial(cost, new), partial(cost, old), say)
    return [new_s / old_s for new_s, old_s in costs]


def _cpu_s(system: System, turn: int, out_dir: Path, requests: int) -> float:
    line = run_load(system, [*_LOAD, "--seed", str(turn), "--requests", str(requests)], out_dir / f"{turn}.log")
    return float(line["cpu"]["api"]["cpu_s"]) / int(line["ok"])
