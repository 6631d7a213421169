"""`make test-all`: what its table says comes from what pytest has printed."""

import os
import re
from pathlib import Path

import pytest

from ops.test_all import GROUPS, counts_of, lacking, reasons_of

OUTPUT = """
SKIPPED [2] tests/gpu/test_sleep.py:9: no CUDA device
==== 3 passed, 1 skipped, 2 deselected in 4.51s ====
SKIPPED [1] tests/acceptance/test_upgrade.py: no history
FAILED tests/unit/test_a.py::test_b - assert 3 passed, in 2
1 failed, 40 passed, 1 skipped, 2 errors in 75.00s (0:01:15)
"""


def test_tests_of_all_runs_are_counted_and_an_error_is_a_failure() -> None:
    counts = counts_of(OUTPUT)
    assert (counts["passed"], counts["skipped"], counts["failed"]) == (43, 2, 3)


def test_each_reason_to_skip_is_named_once() -> None:
    assert reasons_of(OUTPUT + OUTPUT) == ["no CUDA device", "no history"]


def test_a_group_that_needs_root_is_named_where_nobody_is_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [name for name in GROUPS if name != "gpu" and lacking(name)] == ["tiers", "nodes", "images"]


def test_every_marker_that_make_test_leaves_out_is_a_group_of_its_own() -> None:
    """`soak` is no group of tests, but a command: `make soak`."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    (rest,) = re.findall(r"^ELSEWHERE := (.+)$", makefile, re.MULTILINE)
    left_out = set(rest.replace("not ", "").split(" and "))
    assert left_out - {"soak"} == GROUPS.keys() - {"test"}
