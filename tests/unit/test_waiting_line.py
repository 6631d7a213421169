"""Requests that wait for room, and their order, where there is one tenant."""

from hypothesis import given
from hypothesis import strategies as st

from app.ids import TenantId
from app.routing.fair_line import FairLine
from app.routing.fair_order import Flow, priority_class


def flow(priority: int, tenant: str = "one") -> Flow:
    return Flow(priority_class(priority), TenantId(tenant))


requests = st.lists(st.tuples(st.integers(-2, 2), st.floats(0, 10)), max_size=30)


@given(requests, st.integers(0, 10))
def test_the_most_urgent_stay_and_come_first(given_: list[tuple[int, float]], limit: int) -> None:
    """The order is by priority, then deadline, then arrival; one over the limit is told so once."""
    line: FairLine[int] = FairLine()
    evictions = [
        line.push(i, flow(priority), priority, deadline, limit) for i, (priority, deadline) in enumerate(given_)
    ]
    order = sorted(range(len(given_)), key=lambda i: (*given_[i], i))
    assert len(line) == min(limit, len(given_))
    assert line.take(3) + line.take(100) == order[:limit]
    assert sorted(i for i in evictions if i is not None) == sorted(order[limit:])


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), max_size=30), st.integers(0, 4))
def test_what_was_accepted_stays_and_the_others_are_within_the_limit(
    given_: list[tuple[int, bool]], limit: int
) -> None:
    """Their priorities don't matter; a limit of none also keeps what was accepted, and nothing else."""
    line: FairLine[int] = FairLine()
    evictions = {
        line.push(i, flow(priority), priority, 1.0, limit, stays=stays) for i, (priority, stays) in enumerate(given_)
    } - {None}
    remaining_items = list(line)
    accepted_items = {i for i, (_, stays) in enumerate(given_) if stays}
    assert accepted_items <= set(remaining_items)
    assert set(remaining_items) | evictions == set(range(len(given_)))
    assert not evictions & set(remaining_items)
    assert len(set(remaining_items) - accepted_items) <= limit
    remaining_items = line.take(100)
    assert remaining_items == sorted(remaining_items, key=lambda i: (given_[i][0], i))


def test_who_gave_up_is_dropped() -> None:
    """The rest keeps its order."""
    line: FairLine[str] = FairLine()
    for name in "abcd":
        line.push(name, flow(0), 0, 1.0, 10)
    assert line.drop(lambda name: name in "bd") == ["b", "d"]
    assert line.drop(lambda name: False) == []
    assert line.take(10) == ["a", "c"]
