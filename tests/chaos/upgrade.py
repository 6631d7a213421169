"""`make upgrade`: a fleet of an older commit is replaced process by process under load; a table, and one line of JSON.

As docs/guide/upgrading.md says: workers, batch workers and API replicas one after the other, or replicas first. A
worker starts before the one that it replaces is told to end; a replica after it, since both have one port here.
"""

import argparse
import asyncio
import io
import json
import random
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from openai import OpenAI
from rich.console import Console

from app.messages.wire import WIRE_VERSION
from tests.chaos.__main__ import as_json, show
from tests.chaos.faults import Fault
from tests.chaos.fleet import Fleet
from tests.chaos.load import make_cases
from tests.chaos.run import Report, run
from tests.stack import ROOT, leases, mock_pool, wait_until

# The last commit of the wire version before ours; while there is none, the first commit of ours.
BEFORE = "d51097e0d64b643bc6baa212914e9fcd083517ce"
LINES = 400
_DECODE, _PREFILL = "decode-pool-a", "prefill-pool-a"
_POOLS = {
    _DECODE: mock_pool(step_ms=10.0, answer_tokens=1000) | {"role": "decode", "disagg": {"remote_tokens": 64}},
    _PREFILL: mock_pool(step_ms=10.0) | {"role": "prefill", "disagg": {"remote_tokens": 64}},
}


def extract(commit: str, to: Path) -> bool:
    """Puts the tree of that commit there; False if the history isn't here."""
    lookup = subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, check=False, capture_output=True)
    if lookup.returncode:
        return False
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(to, filter="data")
    return True


@contextmanager
def old_fleet(directory: Path, tree: Path) -> Iterator[Fleet]:
    """A fleet of that tree's code, with a batch worker."""
    fleet = Fleet(directory, _POOLS, workers=2)
    fleet.stack.root = tree
    with fleet:
        fleet.stack.worker("batch", "batch")
        yield fleet


def replacement(name: str) -> Fault:
    async def replace(fleet: Fleet, _rng: random.Random) -> None:
        old = fleet.process(name)
        if name.startswith("api-"):  # both have one port: a load balancer has others meanwhile
            old.send_signal(signal.SIGTERM)
            await asyncio.to_thread(old.wait, 180)
            fleet.start_api(int(name.removeprefix("api-")))
            return
        fleet.stack.worker("batch" if name == "batch" else dict(fleet.worker_names)[name], name)
        if name != "batch":
            pid = fleet.process(name).pid
            await asyncio.to_thread(
                wait_until,
                lambda: any(lease.worker.pid == pid for lease in leases(fleet.stack)),
                f"{name} is there",
                180,
            )
        old.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(old.wait, 180) == 0

    replace.__name__ = name
    return replace


@dataclass
class Upgrade:
    report: Report
    completed: int  # lines of a batch that was made before
    failed: int


def upgraded(fleet: Fleet, *, workers_first: bool, seed: int = 3, clients: int = 6) -> Upgrade:
    """Replaces all processes by those of this tree, under load and with a batch.

    Raises: AssertionError, when a process is not of the tree that it has to be of, or the batch doesn't end.
    """
    workers, replicas = [name for name, _ in fleet.worker_names], ["batch", "api-0", "api-1"]
    names = workers + replicas if workers_first else replicas + workers
    before = fleet.stack.root
    assert imported(fleet) == before / "app"
    assert {psutil.Process(fleet.process(name).pid).cwd() for name in names} == {str(before)}
    with OpenAI(base_url=f"{fleet.urls()[1]}/v1", api_key="none", max_retries=0) as c:
        body = {"model": "mock", "prompt": "a line", "max_tokens": 20, "ignore_eos": True}
        lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body} for i in range(LINES)]
        file = c.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
        batch = c.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    fleet.stack.root = ROOT
    cases = make_cases("mock", 16, random.Random(seed))
    report = asyncio.run(run(fleet, cases, [replacement(name) for name in names], seed=seed, clients=clients))
    assert {psutil.Process(fleet.process(name).pid).cwd() for name in names} == {str(ROOT)}
    with OpenAI(base_url=f"{fleet.urls()[0]}/v1", api_key="none", max_retries=0) as c:
        wait_until(lambda: c.batches.retrieve(batch.id).status == "completed", "the batch is complete", 240, 0.5)
        counts = c.batches.retrieve(batch.id).request_counts
        output = c.batches.retrieve(batch.id).output_file_id
        assert output is not None
        ids = [json.loads(line)["custom_id"] for line in c.files.content(output).text.splitlines()]
    assert counts is not None
    assert sorted(ids, key=int) == [str(i) for i in range(LINES)], "each line is in the output once"
    return Upgrade(report, counts.completed, counts.failed)


def imported(fleet: Fleet) -> Path:
    """The folder from which processes of the fleet's tree import `app`."""
    command = [sys.executable, "-c", "import app; print(app.__path__[0])"]
    result = subprocess.run(command, cwd="/", env=fleet.stack.environment(), check=True, capture_output=True, text=True)
    return Path(result.stdout.strip())


def wire_version(tree: Path) -> int:
    folder = tree / "app/messages"
    module = folder / "wire.py" if folder.is_dir() else folder.with_suffix(".py")  # as older versions have it
    match = re.search(r"^WIRE_VERSION = (\d+)", module.read_text(), re.MULTILINE)
    return int(match[1]) if match else 0


def main() -> int:
    """0 when nothing was lost, doubled or refused."""
    options = argparse.ArgumentParser(prog="make upgrade")
    options.add_argument("--from", dest="commit", default=BEFORE, help="a commit: the release before")
    options.add_argument("--order", choices=("workers", "replicas"), default="workers", help="which go first")
    arguments = options.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as by Ctrl-C, the fleet ends
    out = Console(file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "before"
        if not extract(arguments.commit, tree):
            options.error(f"--from {arguments.commit}: no such commit here")
        old = wire_version(tree)
        out.print(f"From {arguments.commit} (wire version {old}) to this tree (wire version {WIRE_VERSION})")
        if abs(old - WIRE_VERSION) > 1:
            options.error(
                f"--from {arguments.commit}: upgrade through the versions between, as docs/guide/upgrading.md says"
            )
        with old_fleet(Path(scratch) / "fleet", tree) as fleet, out.status("replacing"):
            outcome = upgraded(fleet, workers_first=arguments.order == "workers")
    report = outcome.report
    show(report, out, "Processes replaced under load", "replaced")
    metrics = as_json(report)
    metric_names = ("requests", "lost", "duplicated", "failed", "recovery_p50_s", "recovery_p99_s", "leaked_blocks")
    line = {"wire_before": old, "wire": WIRE_VERSION, "replaced": len(report.recovery_s)}
    line |= {key: metrics[key] for key in metric_names} | {"restarted": report.restarted}
    line |= {"batch_completed": outcome.completed, "batch_failed": outcome.failed}
    sys.stdout.write(json.dumps(line) + "\n")
    return int(bool(report.bad or report.restarted or report.leaked_blocks or outcome.failed))


if __name__ == "__main__":
    sys.exit(main())
