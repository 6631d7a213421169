"""`make test-all`: every group of tests one after the other; a table with the date, and one line of JSON.

A group that this machine can't run is named with what it lacks, as is the reason of each test that was skipped. Ends
with 1 if anything failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from ops.bench.parts import table

_ROOT = Path(__file__).parent.parent
_LOGS = _ROOT / ".xylem/test-all"
_AS_ROOT = ("tiers", "nodes", "images")
GROUPS: dict[str, Sequence[str]] = {
    **{name: ("make", name) for name in ("test", "media", "tiers", "nodes", "helm", "images")},
    "gpu": ("make", "gpu"),
}
_SUMMARY = re.compile(r"^=* ?(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s", re.MULTILINE)
_SKIPPED = re.compile(r"^SKIPPED \[\d+\] [^ ]+: (.+)$", re.MULTILINE)


class Ran(NamedTuple):
    name: str
    seconds: float
    counts: Counter[str]  # tests, by how they ended
    status: int | None  # of the command; None: it was not run
    remarks: Sequence[str]  # what the machine lacks


def main() -> int:
    options = argparse.ArgumentParser(prog="make test-all")
    options.add_argument("--only", action="append", choices=[*GROUPS], help="may be repeated")
    names = options.parse_args().only or [*GROUPS]
    _LOGS.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC)
    runs = [_run(name) for name in names]
    title = f"All tests, {began:%Y-%m-%d %H:%M} UTC, on {os.cpu_count()} cores"
    result_table = table(title, "group", "minutes", "passed", "skipped", "failed", "", left=("group", ""))
    for ran in runs:
        cells = (
            [f"{ran.counts[how]}" for how in ("passed", "skipped", "failed")] if ran.status is not None else ["–"] * 3
        )
        result_table.add_row(ran.name, f"{ran.seconds / 60:.1f}", *cells, _said(ran))
    Console(width=None if sys.stdout.isatty() else 200).print(result_table, f"logs: {_LOGS}", sep="\n")
    failures = [ran.name for ran in runs if ran.status]
    not_run = [ran.name for ran in runs if ran.status is None]
    print(json.dumps({"test_all_at": began.isoformat(timespec="seconds"), "failed": failures, "not_run": not_run}))
    return int(bool(failures))


def _run(name: str) -> Ran:
    if lack := lacking(name):
        return Ran(name, 0.0, Counter(), None, [lack])
    print(f"{name}: {' '.join(GROUPS[name])}", flush=True)
    log, began = _LOGS / f"{name}.log", time.monotonic()
    with log.open("w") as sink:
        result = subprocess.run(
            GROUPS[name], cwd=_ROOT, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, check=False
        )
    output = log.read_text(errors="replace")
    return Ran(name, time.monotonic() - began, counts_of(output), result.returncode, reasons_of(output))


def lacking(name: str) -> str:
    """The need of the group that this machine can't meet; "": none that is known before it runs."""
    if name in _AS_ROOT and os.geteuid() != 0:
        return "not run: needs root"
    if name == "gpu" and subprocess.check_output([_ROOT / "ops/device.sh"], text=True).strip() != "gpu":
        return "not run: needs an NVIDIA GPU"
    return ""


def counts_of(output: str) -> Counter[str]:
    """The tests of all runs of pytest in this output, by how they ended; an error is a failure."""
    counts = Counter[str]()
    for summary in _SUMMARY.findall(output):
        for part in summary.split(", "):
            number, how = part.split()
            counts["failed" if how.startswith("error") else how] += int(number)
    return counts


def reasons_of(output: str) -> list[str]:
    """The reasons for which tests were skipped."""
    return sorted(set(_SKIPPED.findall(output)))


def _said(ran: Ran) -> str:
    if ran.status is None:
        return ran.remarks[0]
    remarks = "".join(f"; skipped: {reason}" for reason in ran.remarks)
    return (f"[red]ended with {ran.status}[/]" if ran.status else "[green]passed[/]") + remarks


if __name__ == "__main__":
    sys.exit(main())
