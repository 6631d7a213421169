"""What `make chaos` calls a recovery: pure functions of times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.load import Asked, Case
from tests.chaos.run import stall

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
    plain, counted = stall(one, since, 100), stall(one, since, 100, [both])
    assert counted <= plain
    assert counted >= (plain - (both[1] - both[0])) / 2 - 1e-9
