"""Short runs of what `make chaos` does at length: faults under load, and every answer as if nothing had been."""

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS, redis_stands_still_for_long
from tests.chaos.fleet import Fleet, pools, processes_in
from tests.chaos.load import make_cases, make_picture_cases, make_structured_cases
from tests.chaos.run import Report, run
from tests.stack import ROOT, wait_until

# Half a minute of it takes half a minute; `make chaos` has it.
SHORT = [fault for fault, _ in FAULTS if fault is not redis_stands_still_for_long]


def check(report: Report, fleet: Fleet, faults: int) -> None:
    assert report.bad == []
    assert report.requests > faults
    assert (len(report.recovery_s) + len(report.silent_s), report.leaked_blocks, fleet.left_behind()) == (faults, 0, [])
    assert report.index.wrong == []
    assert report.index.claims > 0
    assert report.usage.wrong == []
    assert report.usage.answers == report.requests
    assert (report.batches, report.batch_deaths >= 6) == (1, True)  # twice with all its lines, four times alone


@pytest.mark.timeout(720)
def test_every_fault_leaves_every_answer_whole(tmp_path: Path) -> None:
    """Exactly one end each, the tokens of an undisturbed run, nothing reserved, no process left, a true index."""
    with Fleet(tmp_path / "fleet", pools(tmp_path / "kv"), usage=True, proxied=True, batch_workers=2) as fleet:
        rng = random.Random(1)
        cases = make_cases("mock", 18, rng) + make_structured_cases("mock", 6, rng)
        cases += make_picture_cases("mock", 6, rng)
        report = asyncio.run(run(fleet, cases, SHORT, seed=1, clients=6))
        assert fleet.redis.keys("xylem:embedding:*"), "encode workers took part"
    check(report, fleet, len(SHORT))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_told_to_end_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--keep", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(processes_in(tmp_path)) > 3, "its fleet starts", 120)
    process.send_signal(number)
    assert process.wait(240) != 0
    assert processes_in(tmp_path) == []
