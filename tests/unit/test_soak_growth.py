"""Growth as `make soak` defines it: a pure function of samples."""

import pytest

from tests.present import present
from tests.soak.growth import Point, growth

HOUR = 3600.0


def sampled(value: object, seconds: float = HOUR) -> list[Point]:
    assert callable(value)
    return [(at, value(at)) for at in range(0, int(seconds), 5)]


def test_a_leak_is_its_share_an_hour_however_long_the_run() -> None:
    for seconds in (HOUR / 4, HOUR, 3 * HOUR):
        growth_rate = growth(sampled(lambda at: 100 + 2 * at / HOUR, seconds), 0, seconds)
        assert growth_rate == pytest.approx(0.02, rel=0.05)


def test_a_short_run_says_nothing_of_an_hour() -> None:
    """An hour's growth drawn from two minutes was 23.8, where the hour said 0.008."""
    assert growth(sampled(lambda at: 100 + at, 120), 0, 120) is None


def test_what_is_flat_but_for_its_begin_and_some_peaks_does_not_grow() -> None:
    """A cache that fills in the first quarter; a peak; and what comes and goes."""
    points = sampled(lambda at: min(at, 800) + (500 if 2000 < at < 2100 else 0) + (30 if at % 20 < 10 else 0))
    growth_rate = present(growth(points, 0, HOUR))
    assert abs(growth_rate) < 0.005


def test_what_shrinks_has_a_negative_growth() -> None:
    growth_rate = present(growth(sampled(lambda at: 200 - at / 100), 0, HOUR))
    assert growth_rate < -0.1


@pytest.mark.parametrize("points", [[], sampled(lambda _: 1.0, 20), sampled(lambda _: 0.0)])
def test_too_few_points_and_nothing_at_all_say_nothing(points: list[Point]) -> None:
    assert growth(points, 0, HOUR) is None
