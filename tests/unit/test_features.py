"""The list of features: its tests are there, its states are some, and README's table is its summary."""

from pathlib import Path

import pytest

from ops.docs.collected import uncollected
from ops.docs.features import Row, State, Theme, problems, rows_open, themes
from ops.docs.features_page import README, readme, summary

HERE = "tests/unit/test_features.py::"
YES, GPU = State("yes"), State("gpu")


def theme(*rows: Row, readme: str = "") -> list[Theme]:
    return [Theme("Answers", rows, readme)]


def test_nothing_is_wrong_with_the_list_and_each_test_that_it_names_is_collected() -> None:
    all_themes = themes()
    assert sum(len(one.rows) for one in all_themes) > 250
    assert problems(all_themes) == []


def test_readmes_table_is_the_lists_summary() -> None:
    assert README.read_text() == readme()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (Row("a", {"state": YES}), "no test proves it"),
        (Row("a", {"state": YES}, (f"{HERE}test_that_is_gone",)), "is gone"),
        (Row("a", {"state": YES}, ("tests/unit/test_nowhere.py::test_a",)), "is in no file"),
        (Row("a", {"state": YES}, ("tests/stack.py::test_a",)), "is in no file of tests"),
        (Row("a", {"state": State("no")}), "no without its reason"),
        (Row("a", {"state": State("perhaps")}), "perhaps is no state"),
        (Row("a", {"vllm": YES, "steam": State("open")}, (HERE,)), "steam is no engine"),
        (Row("a", {}), "has a state, or states by engine"),
        (Row("a", {"state": YES, "vllm": YES}, (HERE,)), "has a state, or states by engine"),
    ],
)
def test_a_row_that_cannot_be_is_told(row: Row, problem: str) -> None:
    assert any(text.startswith("a: ") and problem in text for text in problems(theme(row)))


def test_a_feature_that_is_there_twice_is_told() -> None:
    row = Row("a", {"state": State("open")})
    assert problems(theme(row, row)) == ["a: is there twice"]


SOURCE = """
import pytest
from tests.cases import *

def test_plain(): ...
def helper(): ...
@pytest.mark.skip(reason="no")
def test_left_out(): ...
@pytest.mark.skipif("sys.platform == 'win32'")
async def test_sometimes(): ...
class TestGroup:
    def test_inner(self): ...
class Helper:
    def test_none(self): ...
def outer():
    def test_within(): ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    (root / "tests").mkdir()
    (root / "tests/test_some.py").write_text(SOURCE)
    (root / "tests/cases.py").write_text("def test_shared(): ...\n")
    (root / "tests/test_never.py").write_text("import pytest\npytestmark = [pytest.mark.skip]\ndef test_a(): ...\n")
    return root


@pytest.mark.parametrize("name", ["test_plain", "test_sometimes", "TestGroup::test_inner", "test_shared"])
def test_what_pytest_collects_is_there(folder: Path, name: str) -> None:
    assert uncollected(f"tests/test_some.py::{name}", folder) == ""


@pytest.mark.parametrize(
    ("node_id", "reason"),
    [
        ("tests/test_some.py::helper", "is gone"),
        ("tests/test_some.py::test_within", "is gone"),
        ("tests/test_some.py::Helper::test_none", "is gone"),
        ("tests/test_some.py::test_plain[a]", "is gone"),
        ("tests/test_some.py::test_left_out", "is marked skip"),
        ("tests/test_never.py::test_a", "is marked skip"),
        ("tests/cases.py::test_shared", "is in no file of tests"),
    ],
)
def test_what_pytest_never_runs_is_told(folder: Path, node_id: str, reason: str) -> None:
    assert uncollected(node_id, folder) == reason


@pytest.mark.parametrize(
    ("row", "is_open"),
    [
        (Row("a", {"state": YES}, (HERE,)), False),
        (Row("a", {"vllm": YES, "sglang": State("open", "not tried")}, (HERE,)), True),
        (Row("a", {"state": State("no", "it can't")}), False),
        (Row("a", {"state": State("elsewhere", "another issue")}), False),
        (Row("a", {"state": GPU}, ("tests/gpu/test_sleep.py::test_a",)), False),
        (Row("a", {"state": GPU}, (HERE,)), True),
        (Row("a", {"state": State("gpu", "more than one GPU")}), False),
    ],
)
def test_a_row_is_open_until_it_is_settled_or_another_issues(row: Row, is_open: bool) -> None:
    assert bool(rows_open(theme(row))) == is_open


@pytest.mark.parametrize(
    ("states", "cell"),
    [([YES, YES], "✓"), ([YES, State("open")], "◐ 1 of 2"), ([State("no", "it can't")], "–"), ([GPU], "–")],
)
def test_readme_says_how_many_features_of_a_theme_work(states: list[State], cell: str) -> None:
    rows = [Row(str(number), {"vllm": state}) for number, state in enumerate(states)]
    assert summary(theme(*rows, readme="answers")).splitlines()[-1] == f"| answers | {cell} | – | – |"
