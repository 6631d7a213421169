"""Recoveries as `make chaos` defines them: pure functions of times."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.batches import Poisoned, judged
from tests.chaos.load import Asked, Case
from tests.chaos.run import stall
from tests.chaos.usage_truth import Recorded, differences

times = st.floats(0, 100)


def asked(*at: float) -> Asked:
    return Asked(Case("/", {}), times=sorted(at))


@pytest.mark.parametrize(
    ("outages", "counts"),
    [
        ([], 40.0),
        ([(10.0, 40.0)], 8.0),  # from its end on
        ([(4.0, 46.0)], 2.0),  # nothing came for 2 s behind it
        ([(9.0, 10.0)], 38.0),  # the pause was not for that
        ([(10.0, 20.0), (30.0, 40.0)], 10.0),  # between two
        ([(0.0, 7.0)], 40.0),  # over before
    ],
)
def test_what_a_fault_lasts_itself_is_no_recovery(outages: list[tuple[float, float]], counts: float) -> None:
    assert stall(asked(1, 5, 8, 48), 8.5, 60, outages) == counts


@given(st.lists(times, min_size=2, max_size=10), times, st.tuples(times, times))
def test_an_outage_makes_no_pause_longer_nor_shorter_than_by_its_length(
    at: list[float], since: float, outage: tuple[float, float]
) -> None:
    one, both = asked(*at), (min(outage), max(outage))
    plain, net_stall = stall(one, since, 100), stall(one, since, 100, [both])
    assert net_stall <= plain
    assert net_stall >= (plain - (both[1] - both[0])) / 2 - 1e-9


def test_a_record_that_is_missing_or_differs_is_an_error_of_so_many_tokens() -> None:
    answers = {"same": (5, 2, 3), "short": (5, 2, 3), "missing": (5, 2, 3), "cached": (5, 2, 3)}
    records = {
        "same": Recorded((5, 2, 3), 0),
        "short": Recorded((5, 2, 1), 1),
        "cached": Recorded((5, 4, 3), 0),
        "unasked": Recorded((9, 9, 9), 0),
    }
    comparison = differences(answers, records)
    assert (comparison.answers, comparison.error, len(comparison.wrong)) == (4, 2 + 10 + 2, 3)


def test_of_an_answer_that_was_taken_over_only_cached_tokens_may_differ() -> None:
    assert differences({"a": (5, 2, 3)}, {"a": Recorded((5, 4, 3), 1)}).error == 0
    assert differences({"a": (5, 2, 3)}, {"a": Recorded((5, 4, 6), 1)}).error == 3


def answered(line: int, tokens: int = 3) -> dict[str, Any]:
    answer = {"usage": {"completion_tokens": tokens}}
    return {"custom_id": str(line), "error": None, "response": {"body": answer}}


def refused(line: int, code: str = "worker_lost", *, named: bool = True) -> dict[str, Any]:
    return {"custom_id": str(line) if named else None, "error": {"code": code, "line": line + 1}, "response": None}


@pytest.mark.parametrize(("results", "wrong"), [
    ([answered(0), refused(1), answered(2)], []),
    ([refused(1, named=False), answered(2), answered(0)], []),
    ([answered(0), refused(1)], ["lost"]),
    ([], ["lost"] * 3),
    ([answered(0), refused(1), answered(2), answered(2)], ["duplicated"]),
    ([answered(0), refused(1), answered(2), refused(2)], ["duplicated"]),
    ([answered(0), refused(1), refused(2)], ["failed"]),
    ([answered(0), refused(1), answered(2, tokens=2)], ["failed"]),
    ([answered(0), refused(1, "internal_error"), answered(2)], ["failed"]),
    ([answered(0), answered(1), answered(2)], ["failed"]),
])  # fmt: skip
def test_each_line_of_a_batch_has_one_result_and_the_deadly_one_the_fitting_error(
    results: list[dict[str, Any]], wrong: list[str]
) -> None:
    assert [kind for kind, _ in judged(Poisoned("batch_1", 3, 1, 3), "completed", results)] == wrong
