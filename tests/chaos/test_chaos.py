"""What `make chaos` does at length: faults under load, and every answer as if nothing had been."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS, redis_killed, redis_stands_still_for_long, worker_killed
from tests.chaos.fleet import Fleet
from tests.chaos.load import Case, make_cases
from tests.chaos.run import Report, run
from tests.contract.conftest import model_dir
from tests.stack import mock_pool

POOL = "decode-pool-a"
# Half a minute of it takes half a minute; `make chaos` has it.
SHORT = [fault for fault, _ in FAULTS if fault is not redis_stands_still_for_long]


def check(report: Report, fleet: Fleet, faults: int) -> None:
    assert report.bad == []
    assert report.requests > faults
    assert (len(report.recovery_s), report.leaked_blocks, fleet.left_behind()) == (faults, 0, [])


@pytest.mark.timeout(400)
def test_every_fault_leaves_every_answer_whole(tmp_path: Path) -> None:
    """Exactly one end each, the tokens of an undisturbed run, nothing reserved and no process left."""
    with Fleet(tmp_path / "fleet", {POOL: mock_pool(step_ms=10.0, answer_tokens=1000)}) as fleet:
        cases = make_cases("mock", 24, random.Random(1))
        report = asyncio.run(run(fleet, cases, SHORT, seed=1, clients=10))
    check(report, fleet, len(SHORT))


@pytest.mark.timeout(600)
def test_real_engines_go_on_with_each_others_answers(tmp_path: Path) -> None:
    """Greedy answers of a real model are the same whoever writes their ends."""
    pool = {
        "model": "smollm2", "engine": "vllm", "path": str(model_dir()), "max_running": 4, "max_model_len": 512,
        "args": {"kv_cache_memory_bytes": 2**28},
    }  # fmt: skip
    cases = [
        Case(
            "/v1/completions",
            {
                "model": "smollm2", "prompt": f"Once upon a time, in the year {year}, a fisherman", "max_tokens": 60,
                "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
            },
        )
        for year in (1201, 1456, 1789, 1902)
    ]  # fmt: skip
    env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with Fleet(tmp_path / "fleet", {POOL: pool}, workers=2, **env) as fleet:
        report = asyncio.run(run(fleet, cases, [worker_killed, redis_killed], seed=1, clients=3))
    check(report, fleet, 2)
