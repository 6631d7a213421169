"""What `make chaos` does at length: faults under load, and every answer as if nothing had been."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS, redis_stands_still_for_long
from tests.chaos.fleet import TEMPLATE, Fleet
from tests.chaos.load import make_cases, make_structured_cases
from tests.chaos.run import Report, run
from tests.stack import mock_pool

POOL = "decode-pool-a"
# Half a minute of it takes half a minute; `make chaos` has it.
SHORT = [fault for fault, _ in FAULTS if fault is not redis_stands_still_for_long]


def check(report: Report, fleet: Fleet, faults: int) -> None:
    assert report.bad == []
    assert report.requests > faults
    assert (len(report.recovery_s), report.leaked_blocks, fleet.left_behind()) == (faults, 0, [])


@pytest.mark.timeout(600)
def test_every_fault_leaves_every_answer_whole(tmp_path: Path) -> None:
    """Exactly one end each, the tokens of an undisturbed run, nothing reserved and no process left."""
    pools = {POOL: mock_pool(step_ms=10.0, answer_tokens=1000) | {"chat_template": str(TEMPLATE)}}
    with Fleet(tmp_path / "fleet", pools) as fleet:
        rng = random.Random(1)
        cases = make_cases("mock", 18, rng) + make_structured_cases("mock", 6, rng)
        report = asyncio.run(run(fleet, cases, SHORT, seed=1, clients=10))
    check(report, fleet, len(SHORT))
