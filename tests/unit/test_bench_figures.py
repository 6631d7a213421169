"""The last output of every benchmark: a line of JSON, and before it the reason for each null figure."""

import io
import json
from pathlib import Path

from rich.console import Console

from ops.bench.figures import targets, tell


def test_each_figure_is_a_number_or_null_for_a_reason(tmp_path: Path) -> None:
    """An hour's growth drawn from two minutes is worse than none; and NaN is no JSON."""
    output = io.StringIO()
    values = {"a": 1.23456, "growth": 23.8, "nothing": float("nan"), "besides": 1.0}
    missing = {"growth": "two minutes say nothing of an hour", "replay": "no loadgen.py"}
    line = json.loads(tell(["a", "growth", "nothing", "other"], values, missing, tmp_path, Console(file=output)))
    assert line == {"a": 1.235, "growth": None, "nothing": None, "other": None}
    reasons = {**missing, "nothing": "nothing measured it", "other": "nothing measured it"}
    assert json.loads((tmp_path / "missing.json").read_text()) == reasons
    assert "growth: two minutes say nothing of an hour" in output.getvalue()
    assert "replay: no loadgen.py" in output.getvalue()  # a part without a figure


def test_what_a_figure_aims_at_is_read_from_a_line_for_each_part() -> None:
    aims = targets("""
        load: p99_ms <= 4, share >= 1/3
              mean_ms
        idle: watts
    """)
    assert aims == {"load": {"p99_ms": (4.0, False), "share": (1 / 3, True), "mean_ms": None}, "idle": {"watts": None}}
