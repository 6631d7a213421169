"""`make smoke`: what `make test` has of benchmarks, chaos, soak and clients only without engines, or not at all.

Each benchmark in its smallest size with all that is installed here, and the shortest run of each of the others. A
table, and one line of JSON. Ends with 1 if anything failed, or a figure is null for another reason than those foreseen.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from ops.bench.benchmarks import NOT_INSTALLED, OF_LITTLE, benchmarks
from ops.bench.parts import table
from ops.bench.session import measuring
from ops.bench.size import LEFT_OUT

_AT_ONCE = 2  # on two cores: most of them wait for most of their time
_LIMIT_S, _END_S = 900.0, 60.0
_OTHERS = {
    "chaos": ["-m", "tests.chaos", "--faults", "2"],
    "soak": ["-m", "tests.soak", "--minutes", "1"],
    "clients": ["-m", "ops.clients", "--only", "openai"],
}
_FIRST = ("soak", "media", "engines", "tiers", "agents")  # those that take longest


class Ran(NamedTuple):
    name: str
    seconds: float
    failure: str  # empty: none


def main() -> int:
    commands = _OTHERS | {name: ["-m", f"ops.bench.{name}"] for name in benchmarks()}
    options = argparse.ArgumentParser(prog="make smoke")
    options.add_argument("--only", action="append", choices=[*commands], help="may be repeated")
    selection = options.parse_args().only or [*commands]
    names = sorted(selection, key=lambda name: (*(name != first for first in _FIRST), name))
    began = time.monotonic()
    with measuring("smoke", Path(".xylem/smoke")) as (out_dir, progress, task), ThreadPoolExecutor(_AT_ONCE) as threads:

        def run(name: str) -> Ran:
            progress.update(task, description=name)
            return _run(name, commands[name], out_dir)

        runs = [*threads.map(run, names)]
    result_table = table("The smallest of everything", "what", "s", "", left=("what", ""))
    for ran in runs:
        result_table.add_row(ran.name, f"{ran.seconds:.0f}", ran.failure or "[green]works[/]")
    Console(width=None if sys.stdout.isatty() else 200).print(result_table, f"logs: {out_dir}", sep="\n")
    failures = [ran.name for ran in runs if ran.failure]
    print(json.dumps({"smoke_s": round(time.monotonic() - began), "failed": failures}), flush=True)
    return int(bool(failures))


def _run(name: str, command: list[str], out_dir: Path) -> Ran:
    directory, began = out_dir / name, time.monotonic()
    directory.mkdir()
    where = [] if name in _OTHERS or name == "groups" else ["--out", str(directory)]
    with (directory / "said.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command, *where], env=os.environ | {"SMOKE": "all"}, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            status = process.wait(_LIMIT_S)
            failure = f"ended with {status}" if status else _unexpected(directory)
        except subprocess.TimeoutExpired:
            failure = f"over {_LIMIT_S:.0f} s"
        finally:
            _end(process)
    return Ran(name, time.monotonic() - began, failure)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends it as Ctrl-C does, so that it ends what it has started: engines, which nobody else would end."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _unexpected(directory: Path) -> str:
    """Figures of a benchmark that are null for another reason than one that was foreseen."""
    missing = {
        key: why for path in directory.glob("*/missing.json") for key, why in json.loads(path.read_text()).items()
    }
    known_reasons = (LEFT_OUT, *OF_LITTLE, *NOT_INSTALLED)
    surprises = [f"{key}: {why}" for key, why in missing.items() if not any(reason in why for reason in known_reasons)]
    return "; ".join(surprises)[:300]


if __name__ == "__main__":
    sys.exit(main())
