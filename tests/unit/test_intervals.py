"""Intervals that depend on each other do so whatever the settings are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import SettingsError
from app.intervals import Intervals
from app.settings import load_settings

seconds = st.floats(0.01, 100)


@given(seconds, seconds)
def test_processes_have_time_for_a_heartbeat_before_they_count_as_dead(heartbeat_s: float, api_ttl_s: float) -> None:
    i = Intervals(heartbeat_s, api_ttl_s)
    assert 2 * i.look_s < min(i.adopt_s, i.api_ttl_s)
    assert max(3.0, i.api_ttl_s) <= i.drop_s
    assert max(3.0, 2 * heartbeat_s) <= i.steady_s
    assert max(6.0, i.steady_s) <= i.batches_steady_s


def test_those_of_the_default_settings_are_the_defaults() -> None:
    assert load_settings().intervals == Intervals()
    assert (Intervals().look_s, Intervals().adopt_s, Intervals().steady_s) == (0.25, 1.0, 3.0)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"heartbeat_s": 1.1}, r"XYLEM_HEARTBEAT_S: 1.1 is more than half of XYLEM_LEASE_TTL_S \(2\)"),
        ({"lease_ttl_s": 0.9}, r"XYLEM_HEARTBEAT_S: 0.5 is more than half of XYLEM_LEASE_TTL_S \(0.9\)"),
        ({"lease_ttl_s": 61}, r"XYLEM_STREAM_TTL_S: 60 is less than XYLEM_LEASE_TTL_S \(61\)"),
    ],
)
def test_settings_that_contradict_each_other_stop_the_process(bad: dict[str, float], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(**bad)
