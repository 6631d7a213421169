"""`make soak` in short. What three minutes hold says nothing of an hour, so only that it runs and what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.growth import TOO_SHORT
from tests.stack import ROOT


@pytest.mark.timeout(1200)
def test_a_short_soak_does_not_say_what_grows_in_an_hour_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", "3", "--plot", str(tmp_path / "soak.png")]
    result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    metrics = json.loads(result.stdout.splitlines()[-1])
    assert {metrics[key] for key in ("soak_growth", "growth_memory", "growth_descriptors", "growth_keys")} == {None}
    assert TOO_SHORT in " ".join(result.stderr.split())
    assert [metrics[key] for key in ("lost", "duplicated", "failed", "index_wrong", "leaked_blocks")] == [0] * 5
    assert min(metrics[key] for key in ("requests", "batches", "faults")) > 0
    assert (tmp_path / "soak.png").stat().st_size > 0
    assert json.loads((tmp_path / "soak.json").read_text())["memory"].keys()
