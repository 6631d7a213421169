"""A rolling upgrade: a fleet of an older version is replaced process by process under load, and nobody notices."""

import asyncio
import io
import json
import random
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from openai import OpenAI

from tests.chaos.faults import Fault
from tests.chaos.fleet import Fleet
from tests.chaos.load import make_cases
from tests.chaos.run import run
from tests.stack import ROOT, leases, mock_pool, wait_until

# The last commit of the wire version before ours; while there is none, the first commit of ours.
BEFORE = "d51097e0d64b643bc6baa212914e9fcd083517ce"
DECODE, PREFILL = "decode-pool-a", "prefill-pool-a"
POOLS = {
    DECODE: mock_pool(step_ms=10.0, answer_tokens=1000) | {"role": "decode", "disagg": {"remote_tokens": 64}},
    PREFILL: mock_pool(step_ms=10.0) | {"role": "prefill", "disagg": {"remote_tokens": 64}},
}
LINES = 400


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of that commit."""
    known = subprocess.run(["git", "cat-file", "-e", BEFORE], cwd=ROOT, check=False, capture_output=True)
    if known.returncode:
        pytest.skip("a source package and a shallow clone have no history")
    path = tmp_path_factory.mktemp("before")
    packed = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tree:
        tree.extractall(path, filter="data")
    return path


@pytest.fixture
def fleet(tmp_path: Path, before: Path) -> Iterator[Fleet]:
    """Of the older version, with a batch worker."""
    f = Fleet(tmp_path / "fleet", POOLS, workers=2)
    f.stack.root = before
    with f:
        f.stack.worker("batch", "batch")
        yield f


def replacement(name: str) -> Fault:
    async def replace(fleet: Fleet, _rng: random.Random) -> None:
        old = fleet.process(name)
        if name.startswith("api-"):  # both have one port: a load balancer has others meanwhile
            old.send_signal(signal.SIGTERM)
            await asyncio.to_thread(old.wait, 60)
            fleet.start_api(int(name.removeprefix("api-")))
            return
        fleet.stack.worker("batch" if name == "batch" else dict(fleet.worker_names)[name], name)
        if name != "batch":
            pid = fleet.process(name).pid
            await asyncio.to_thread(
                wait_until,
                lambda: any(lease.worker.pid == pid for lease in leases(fleet.stack)),
                f"{name} is there",
                60,
            )
        old.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(old.wait, 60) == 0

    replace.__name__ = name
    return replace


@pytest.mark.parametrize("first", ["workers", "replicas"])
def test_nothing_is_lost_when_a_fleet_is_upgraded_under_load(fleet: Fleet, before: Path, first: str) -> None:
    """Streams that others can resume or not, prompts that are computed apart, and a batch."""
    workers, replicas = [name for name, _ in fleet.worker_names], ["batch", "api-0", "api-1"]
    names = workers + replicas if first == "workers" else replicas + workers
    assert imported(fleet, before) == before / "app"
    assert {psutil.Process(fleet.process(name).pid).cwd() for name in names} == {str(before)}
    with OpenAI(base_url=f"{fleet.urls()[1]}/v1", api_key="none", max_retries=0) as c:
        body = {"model": "mock", "prompt": "a line", "max_tokens": 20, "ignore_eos": True}
        lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body} for i in range(LINES)]
        file = c.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
        batch = c.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    fleet.stack.root = ROOT
    cases = make_cases("mock", 16, random.Random(3))
    report = asyncio.run(run(fleet, cases, [replacement(name) for name in names], seed=3, clients=6))
    assert {psutil.Process(fleet.process(name).pid).cwd() for name in names} == {str(ROOT)}
    assert report.bad == []
    assert (report.restarted, report.leaked_blocks) == (0, 0), "no connection broke before its answer's end"
    assert report.requests > 50
    with OpenAI(base_url=f"{fleet.urls()[0]}/v1", api_key="none", max_retries=0) as c:
        wait_until(lambda: c.batches.retrieve(batch.id).status == "completed", "the batch is complete", 120, 0.5)
        counts = c.batches.retrieve(batch.id).request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (LINES, 0)


def imported(fleet: Fleet, tree: Path) -> Path:
    """Where processes of that tree have `app` from."""
    command = [sys.executable, "-c", "import app; print(app.__path__[0])"]
    said = subprocess.run(command, cwd="/", env=fleet.stack.environment(), check=True, capture_output=True, text=True)
    assert fleet.stack.root == tree
    return Path(said.stdout.strip())
