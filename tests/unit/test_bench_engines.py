"""Figures that the benchmark of engines counts."""

import pytest

from ops.bench.engines.contract import counted
from ops.bench.engines.forced import gap
from ops.bench.processes import Unavailable


def suite(*cases: str) -> str:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"


def case(name: str, outcome: str = "") -> str:
    return f'<testcase name="{name}">{f"<{outcome}/>" if outcome else ""}</testcase>'


GOOD = [case("test_a[mock]"), case("test_a[vllm-1]"), case("test_a[sglang]"), case("test_a[trtllm]")]


def test_failures_and_errors_of_all_engines_count_and_skips_do_not() -> None:
    bad = [case("test_b[vllm]", "failure"), case("test_b[sglang]", "error"), case("test_b[mock]", "skipped")]
    counts = counted(suite(*GOOD, *bad, case("test_c", "failure")))
    assert (counts["contract_failed"], counts["contract"]["vllm"]) == (3, {"passed": 1, "failure": 1})
    assert counted(suite(*GOOD))["contract_failed"] == 0


def test_a_suite_without_one_of_the_engines_says_nothing() -> None:
    with pytest.raises(Unavailable, match="sglang"):
        counted(suite(*(one for one in GOOD if "sglang" not in one)))


def test_a_token_is_as_far_off_as_the_likeliest_one_is_above_it() -> None:
    scores = {"7": {"logprob": -0.5}, "3": {"logprob": -0.25}}
    assert gap(7, scores) == 0.25
    assert gap(3, scores) == 0
