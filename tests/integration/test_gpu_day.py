"""`make gpu` where there is no GPU, no package index or not every engine; and what it makes of results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ops.docs.features import Row, State, Theme, themes
from ops.gpu import environments
from ops.gpu.results import Result, Shown, results_of, rows_shown
from tests.stack import ROOT

WAKES, ANSWERS = "tests/gpu/test_sleep.py::test_it_wakes", "tests/gpu/test_contract.py::test_it_answers"
JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.gpu.test_contract" name="test_it_answers[vllm]"/>
<testcase classname="tests.gpu.test_contract" name="test_it_answers[sglang]"><skipped message="no sglang"/></testcase>
<testcase classname="tests.gpu.test_sleep" name="test_it_wakes[vllm-1]"/>
<testcase classname="tests.gpu.test_sleep" name="test_it_wakes[vllm-2]">
<failure message="assert 1 == 2&#10;more">text</failure></testcase>
<testcase classname="tests.gpu.test_sleep" name="test_it_wakes[sglang-1]"/>
<testcase classname="tests.gpu.test_trtllm" name="test_it_starts"><error message="no memory">text</error></testcase>
</testsuite></testsuites>"""


def test_results_are_those_of_the_engine_whose_environment_ran_them(tmp_path: Path) -> None:
    file = tmp_path / "vllm.xml"
    file.write_text(JUNIT)
    assert results_of(file, "vllm") == [
        Result(ANSWERS, "vllm", "passed"),
        Result(WAKES, "vllm", "passed"),
        Result(WAKES, "vllm", "failed", "assert 1 == 2"),
        Result("tests/gpu/test_trtllm.py::test_it_starts", "vllm", "failed", "no memory"),
    ]


def test_a_row_is_shown_by_all_of_its_checks_and_by_no_other_engines() -> None:
    gpu = State("gpu")
    rows = (
        Row("answers", {"vllm": gpu, "sglang": gpu, "mock": State("yes")}, (ANSWERS,)),
        Row("wakes", {"vllm": gpu}, (WAKES, ANSWERS)),
        Row("starts", {"vllm": gpu}, ("tests/gpu/test_a.py::test_other",)),
        Row("works", {"vllm": State("yes")}, (ANSWERS,)),
        Row("several", {"vllm": State("gpu", "more than one GPU")}, ("tests/unit/test_a.py::test_b",)),
    )
    results = [Result(ANSWERS, "vllm", "passed"), Result(WAKES, "vllm", "failed", "it sleeps")]
    assert rows_shown([Theme("all", rows)], results, {"sglang": "sglang not installed"}) == [
        Shown("answers", "vllm", True),
        Shown("answers", "sglang", None, "sglang not installed"),
        Shown("wakes", "vllm", False, "test_it_wakes: it sleeps"),
        Shown("starts", "vllm", None, "no check of it ran"),
    ]


def test_there_is_a_row_for_each_engine_and_every_check_of_them_is_there() -> None:
    rows = rows_shown(themes(), [], {})
    assert {row.engine for row in rows} == {"vllm", "sglang", "trtllm"}
    assert len(rows) > 25


def test_a_python_without_the_engine_says_what_is_missing() -> None:
    assert environments.lacking(sys.executable, "no_such_engine") == "no_such_engine not installed"
    assert environments.lacking(sys.executable, "msgspec") == ""
    on_gpu = environments.lacking(sys.executable, "msgspec", on_gpu=True)
    assert on_gpu == ("" if torch.cuda.is_available() else "its torch sees no GPU")
    assert "can't be asked" in environments.lacking("/no/python", "vllm")


def test_without_a_package_index_an_engine_is_named_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(environments, "candidates", lambda *_: [sys.executable])
    monkeypatch.setitem(environments.ENGINES, "vllm", "no_such_engine")
    assert environments.environment("vllm").lack == "no_such_engine not installed; xylem: no package index answers"


def test_a_rehearsal_without_the_engine_ends_with_a_table_and_a_line_of_json(tmp_path: Path) -> None:
    """Each row that it could not show is named, and none of them counts as failed."""
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "ops.gpu", "--rehearse", "--only", "trtllm"]
    result = subprocess.run(command, cwd=ROOT, env=offline, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    *table, counts, figures = result.stdout.splitlines()
    assert "trtllm: not run: " in table[0]
    assert any(line.startswith("– trtllm") and "tensorrt_llm not installed" in line for line in table)
    assert counts.startswith("0 passed, 0 failed in ")
    assert json.loads(figures)["rows_not_run"] == len(table) - 1


def test_without_a_gpu_it_says_so_and_how_to_rehearse(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "ops.gpu"], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (result.returncode, "no NVIDIA GPU" in result.stdout) == (2, True)
