"""What every benchmark prints last: a line of JSON, and before it why a figure in it is null."""

import io
import json
from pathlib import Path

from rich.console import Console

from ops.bench.figures import tell


def test_each_figure_is_a_number_or_null_for_a_reason(tmp_path: Path) -> None:
    """An hour's growth drawn from two minutes is worse than none; and NaN is no JSON."""
    said = io.StringIO()
    found = {"a": 1.23456, "growth": 23.8, "nothing": float("nan"), "besides": 1.0}
    missing = {"growth": "two minutes say nothing of an hour", "replay": "no loadgen.py"}
    line = json.loads(tell(["a", "growth", "nothing", "other"], found, missing, tmp_path, Console(file=said)))
    assert line == {"a": 1.235, "growth": None, "nothing": None, "other": None}
    expected = {**missing, "nothing": "nothing measured it", "other": "nothing measured it"}
    assert json.loads((tmp_path / "missing.json").read_text()) == expected
    assert "growth: two minutes say nothing of an hour" in said.getvalue()
    assert "replay: no loadgen.py" in said.getvalue()  # a part without a figure
