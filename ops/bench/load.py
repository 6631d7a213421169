"""One run of the load generator against one system: a process, and a line of figures."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.bench.processes import Unavailable, process, tail

Line = dict[str, Any]  # the output of loadgen.py
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


def tools_dir() -> Path:
    """The folder of loadgen.py and dynamo_up.sh. Raises: Unavailable."""
    path = Path(os.environ.get("XYLEM_BENCH_TOOLS", "../shared/bench")).resolve()
    if not (path / "loadgen.py").exists():
        raise Unavailable(f"no loadgen.py in {path}: set XYLEM_BENCH_TOOLS")
    return path


def run_load(system: System, options: Sequence[str], log: Path) -> Line:
    """Blocks until the load has been served. Raises: Unavailable when one request failed."""
    watch = [f"--watch={part}={','.join(map(str, pids))}" for part, pids in system.watch.items()]
    client = [sys.executable, str(tools_dir() / "loadgen.py"), "run", "--base-url", system.url, "--model", system.model]
    with process([*system.prefix, *client, *watch, *options], log) as child:
        try:
            code = child.wait(_RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{system.name} did not serve the load in {_RUN_LIMIT_S} s") from None
    if code:
        raise Unavailable(f"load generator failed on {system.name}: {tail(log)}")
    line: Line = json.loads(log.read_text().splitlines()[-1])
    if line["errors"]:
        raise Unavailable(f"{system.name}: {line['errors']} requests failed, the first with {line['first_error']}")
    return {"system": system.name, **line}
