"""One run of the load generator against one system: a process, and a line of figures."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.bench.processes import Unavailable, finished
from tests.stack import ROOT

Line = dict[str, Any]  # the output of the load generator
_RUN_LIMIT_S = 900


@dataclass(frozen=True)
class System:
    """A running server under test. `watch["api"]` is the process whose CPU time is compared."""

    name: str
    url: str
    model: str
    watch: dict[str, list[int]]  # part of the system → the process ids it consists of
    prefix: list[str] = field(default_factory=list)  # the command that enters the system's network namespace
    redis_url: str = ""


def trace(name: str) -> Path:
    """A public trace of requests. Raises: Unavailable."""
    path = Path(os.environ.get("XYLEM_BENCH_TRACES", "../shared/traces")).resolve() / name
    if not path.exists():
        raise Unavailable(
            f"no {name} in {path.parent}: set XYLEM_BENCH_TRACES (ops/bench/README.md says where it is from)"
        )
    return path


def _generator() -> list[str]:
    """The command of the load generator: ours, or that of the tools that a variable names."""
    folder = os.environ.get("XYLEM_BENCH_TOOLS")
    return ["-m", "ops.bench.loadgen"] if folder is None else [str(Path(folder).resolve() / "loadgen.py")]


def run_load(system: System, options: Sequence[str], log: Path) -> Line:
    """Blocks until the load has been served. Raises: Unavailable when one request failed."""
    watch = [f"--watch={part}={','.join(map(str, pids))}" for part, pids in system.watch.items()]
    client = [sys.executable, *_generator(), "run", "--base-url", system.url, "--model", system.model]
    command = [*system.prefix, *client, *watch, *options]
    finished(command, log, _RUN_LIMIT_S, f"the load on {system.name}", {"PYTHONPATH": str(ROOT)})
    line: Line = json.loads(log.read_text().splitlines()[-1])
    if line["errors"]:
        raise Unavailable(f"{system.name}: {line['errors']} requests failed, the first with {line['first_error']}")
    return {"system": system.name, **line}
