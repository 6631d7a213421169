"""Differences that `make conformance` calls new, gone and expected."""

from pathlib import Path

import pytest

from ops.conformance.outcomes import Difference, Verdict, judged, read_differences, read_junit
from ops.conformance.suites import NAMES

LIMIT = Difference("Pages of 0.", says="'limit': .* 1")
LIST = Difference("Another type.", tests="*TestMessages::*_list*")


def test_a_failure_that_nothing_explains_is_new() -> None:
    outcomes = {"a": "", "b": "'limit': at least 1\nand more", "c": "500\n'limit': at least 1"}
    assert judged(outcomes, [LIMIT]) == Verdict(1, 1, ("c: 500",), ())


def test_a_difference_that_explains_no_failure_any_more_is_gone() -> None:
    outcomes = {"x::TestMessages::test_list[strict]": "", "x::TestFiles::test_list": "failed"}
    assert judged(outcomes, [LIST]) == Verdict(1, 0, ("x::TestFiles::test_list: failed",), (str(LIST),))


def test_a_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.x.TestA" name="passes"/>
        <testcase classname="tests.x.TestA" name="fails"><failure message="so"/></testcase>
        <testcase classname="tests.x.TestA" name="breaks"><error>why</error></testcase>
        <testcase classname="tests.x.TestA" name="not here"><skipped/></testcase>
        </testsuite></testsuites>"""
    )
    assert read_junit(report) == {
        "tests::x::TestA::passes": "", "tests::x::TestA::fails": "so", "tests::x::TestA::breaks": "why",
    }  # fmt: skip


@pytest.mark.parametrize("suite", NAMES)
def test_each_expected_difference_says_why(suite: str) -> None:
    """Its pattern is specific: neither all tests, nor the same as another."""
    differences = read_differences(suite)
    assert all(one.reason and (one.says or one.tests != "*") for one in differences)
    assert len({str(one) for one in differences}) == len(differences)
