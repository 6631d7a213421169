"""Shows where the API's time goes: py-spy samples it while one measure's load runs once more."""

import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ops.bench.load import System
from ops.bench.measures import Measure
from ops.bench.parts import table
from ops.bench.processes import Unavailable, process, tail
from ops.bench.runs import Runs

_RATE = 250  # samples per second
_WIDTH = 150
_ROWS = 25
_PARKED = "_worker (concurrent/futures/thread.py"  # a thread waiting for work: py-spy counts it as busy


def profile(runs: Runs, system: System, measure: Measure) -> None:
    """Prints a table and appends it to `profile.txt`; `profile-<key>.txt` has the collapsed stacks.

    speedscope and flamegraph.pl read the latter.
    """
    try:
        samples = _table(measure.title, _record(runs, system, measure))
    except Unavailable as exc:
        runs.progress.console.print(f"no profile of {measure.title}: {exc}")
        return
    Console(width=_WIDTH).print(samples)
    with (runs.out_dir / "profile.txt").open("a") as file:
        Console(file=file, width=_WIDTH).print(samples)


def _record(runs: Runs, system: System, measure: Measure) -> dict[str, int]:
    """Samples per stack. Raises: Unavailable."""
    runs.say(f"profile: {measure.title}")
    out, log = runs.out_dir / f"profile-{measure.key}.txt", runs.out_dir / "py-spy.log"
    with process(recording(system.watch["api"][0], out, _RATE, "--format", "raw"), log) as child:
        runs.one(system, f"profile-{measure.key}", measure.options(runs.size, seed=runs.repetitions))
        child.send_signal(signal.SIGINT)  # py-spy writes its file then
        child.wait(30)
    if not out.exists():
        raise Unavailable(tail(log))
    rows = (line.rpartition(" ") for line in out.read_text().splitlines())
    return {stack: int(count) for stack, _, count in rows if not stack.rpartition(";")[2].startswith(_PARKED)}


def recording(pid: int, out: Path, rate: int, *options: str) -> list[str]:
    """py-spy's command: `PY_SPY` names it, or it is on the path or beside Python. `rate`: samples a second."""
    beside_python = Path(sys.executable).with_name("py-spy")
    py_spy = os.environ.get("PY_SPY") or shutil.which("py-spy") or str(beside_python)
    more = ["--pid", str(pid), "--rate", str(rate), "--function", "--duration", "600", "--output", str(out)]
    return [py_spy, "record", *more, *options]


def _table(title: str, stacks: dict[str, int]) -> Table:
    """Functions by self time: the samples in which they were innermost; `with callees`: anywhere."""
    own, all_in = Counter[str](), Counter[str]()
    for stack, count in stacks.items():
        frames = stack.split(";")
        own[frames[-1]] += count
        for frame in set(frames):
            all_in[frame] += count
    total = sum(own.values()) or 1
    rows = ((f"{n / total:.1%}", f"{all_in[frame] / total:.1%}", frame) for frame, n in own.most_common(_ROWS))
    names = ("self", "with callees", "function")
    return table(f"API process, {title}: {total} samples at {_RATE}/s", *names, rows=rows, left=names[2:])
