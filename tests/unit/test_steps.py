"""Cost of a step, measured from steps that hold different numbers of requests."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engines.steps import StepFit, StepMeter


@given(st.floats(1e-4, 0.1), st.floats(1e-3, 1), st.integers(0, 99))
def test_the_fit_finds_what_steps_are_made_of(base_s: float, share: float, seed: int) -> None:
    """Within 15 %, with noise of a tenth on each step: of ten thousand fits the worst is off by 11 %."""
    meter, rng, request_s = StepMeter(), Random(seed), base_s * share
    for _ in range(2000):
        n = rng.randint(1, 64)
        meter.add(n, (base_s + n * request_s) * rng.uniform(0.9, 1.1))
    fit = meter.read()
    for n in (1, 32, 64):
        assert fit.base_s + n * fit.request_s == pytest.approx(base_s + n * request_s, rel=0.15)
    if share > 0.1:  # else it is half lost in the noise
        assert fit.request_s == pytest.approx(request_s, rel=0.2)


def test_sums_over_several_steps_count_as_these_steps_do() -> None:
    one, other = StepMeter(), StepMeter()
    steps = [(n, 0.01 + n * 0.001) for n in (1, 4, 2, 3)]
    for n, seconds in steps:
        one.add(n, seconds)
    columns = zip(*((n, n * n, s, n * s) for n, s in steps), strict=True)
    other.add_sums(len(steps), *map(sum, columns))
    assert other.read().base_s == pytest.approx(one.read().base_s, rel=0.01)
    assert other.read().request_s == pytest.approx(one.read().request_s, rel=0.01)


def test_nothing_is_known_of_a_requests_cost_while_all_steps_hold_as_many() -> None:
    meter = StepMeter()
    for _ in range(100):
        meter.add(4, 0.01)
    assert meter.read() == StepFit(pytest.approx(0.01), 0.0)


def test_a_step_is_known_though_more_requests_seem_to_make_it_shorter() -> None:
    """Other work on the machine may hide what a request adds."""
    meter = StepMeter()
    assert meter.read() == StepFit()
    for n in (1, 2, 3, 4) * 100:
        meter.add(n, 0.02 - n * 0.001)
    assert meter.read() == StepFit(pytest.approx(0.0175, rel=0.01), 0.0)


def test_steps_without_requests_are_steps() -> None:
    meter = StepMeter()
    meter.add(0, 0.01)
    assert meter.read() == StepFit(0.01, 0.0)


def test_what_is_known_stays_when_steps_become_alike() -> None:
    meter = StepMeter()
    for n in (1, 2, 3, 4) * 100:
        meter.add(n, 0.01 + n * 0.001)
    meter.read()
    for _ in range(5000):
        meter.add(4, 0.014)
    assert meter.read().request_s == pytest.approx(0.001, rel=0.05)
    assert meter.read().base_s == pytest.approx(0.01, rel=0.05)


def test_older_steps_fade_and_a_pause_is_no_step() -> None:
    meter = StepMeter()
    for n in (1, 2, 3, 4) * 500:
        meter.add(n, 0.05 + n * 0.001)
    for n in (1, 2, 3, 4) * 1000:
        meter.add(n, 0.01 + n * 0.002)
    assert meter.read().request_s == pytest.approx(0.002, rel=0.05)
    meter.add(2, 60.0)
    assert meter.read().base_s < 0.02
