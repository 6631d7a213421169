"""Redis' clock as this process knows it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store.clock import Clock, ClockReading, better, reading

EPOCH = 1_800_000_000.0
ways = st.floats(0, 0.5)  # seconds to Redis, and back
gaps = st.floats(0, 60)  # between two questions


def ask(at: float, there: float, back: float, offset: float) -> ClockReading:
    """The reading of a Redis whose clock is the monotonic one plus `offset`."""
    theirs = at + there + offset
    return reading(at, at + there + back, (int(theirs), int(theirs % 1 * 1e6)))


@given(st.lists(st.tuples(gaps, ways, ways), min_size=1, max_size=30), st.floats(-1e-4, 1e-4))
def test_a_clock_reading_is_never_off_by_more_than_its_error(
    questions: list[tuple[float, float, float]], drift: float
) -> None:
    """The way's slowness in either direction doesn't matter, nor that the two clocks run at different speeds."""
    estimate, at = None, 1000.0
    for gap, there, back in questions:
        at += gap
        new = ask(at, there, back, EPOCH + at * drift)
        at += there + back
        estimate = better(estimate, new)
        off = abs(estimate.offset - (EPOCH + at * drift))
        assert off <= estimate.error + (at - estimate.at) * 2e-4 + 1e-4
        assert estimate.error + (at - estimate.at) * 2e-4 <= new.error + 1e-9, "the more exact one is kept"


def test_a_slow_answer_takes_nothing_from_an_exact_one() -> None:
    exact = ask(1000.0, 0.0001, 0.0001, EPOCH)
    assert better(exact, ask(1001.0, 0.4, 0.0, EPOCH)) is exact


@pytest.mark.parametrize("by", [-30.0, 30.0, 0.5])
def test_when_redis_clock_is_set_the_next_answer_counts(by: float) -> None:
    """A failover to a host with another clock causes this: both readings can't be true."""
    estimate = ask(1000.0, 0.0001, 0.0001, EPOCH)
    new = ask(1001.0, 0.01, 0.01, EPOCH + by)
    assert better(estimate, new) is new


def test_this_hosts_own_clock_may_be_set_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock has no effect after Redis' first answer."""
    wall, own = time.time, Clock()
    assert own.now() == pytest.approx(wall(), abs=5)
    own.heard(time.monotonic(), (int(EPOCH), 0))
    before = own.now()
    monkeypatch.setattr(time, "time", lambda: wall() + 3600)
    assert 0 <= own.now() - before < 5
    assert own.now() == pytest.approx(EPOCH, abs=5)
