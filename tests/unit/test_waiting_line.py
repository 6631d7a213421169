"""Who waits for room, and in which order, where there is one tenant."""

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
    """By priority, then deadline, then arrival; who is over the limit is told so once."""
    held: FairLine[int] = FairLine()
    gone = [held.push(i, flow(priority), priority, deadline, limit) for i, (priority, deadline) in enumerate(given_)]
    order = sorted(range(len(given_)), key=lambda i: (*given_[i], i))
    assert len(held) == min(limit, len(given_))
    assert held.take(3) + held.take(100) == order[:limit]
    assert sorted(i for i in gone if i is not None) == sorted(order[limit:])


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), max_size=30), st.integers(0, 4))
def test_what_was_accepted_stays_and_the_others_are_within_the_limit(
    given_: list[tuple[int, bool]], limit: int
) -> None:
    """Whatever their priorities are: also a limit of none keeps what was accepted, and nothing else."""
    held: FairLine[int] = FairLine()
    gone = {
        held.push(i, flow(priority), priority, 1.0, limit, stays=stays) for i, (priority, stays) in enumerate(given_)
    } - {None}
    left = list(held)
    accepted = {i for i, (_, stays) in enumerate(given_) if stays}
    assert accepted <= set(left)
    assert set(left) | gone == set(range(len(given_)))
    assert not gone & set(left)
    assert len(set(left) - accepted) <= limit
    left = held.take(100)
    assert left == sorted(left, key=lambda i: (given_[i][0], i))


def test_who_gave_up_is_dropped() -> None:
    """And the rest keeps its order."""
    held: FairLine[str] = FairLine()
    for name in "abcd":
        held.push(name, flow(0), 0, 1.0, 10)
    assert held.drop(lambda name: name in "bd") == ["b", "d"]
    assert held.drop(lambda name: False) == []
    assert held.take(10) == ["a", "c"]
