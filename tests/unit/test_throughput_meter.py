"""An engine's pace, measured from what happened when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ids import RunId
from app.messages.lease import Speeds
from app.routing.throughput_meter import ThroughputMeter


def run(name: object) -> RunId:
    return RunId(str(name))


def test_nothing_measured_is_nothing_said() -> None:
    assert ThroughputMeter().read(5.0) == Speeds()


@pytest.mark.parametrize("first_tokens", [(1.0, 2.0, 3.0), (2.0, 2.0)], ids=["in turn", "in one step"])
def test_prompts_that_come_at_once_give_the_engines_speed(first_tokens: tuple[float, ...]) -> None:
    """Waiting is no computing, where they are computed one after the other; and of one step the sums are right."""
    meter = ThroughputMeter()
    for i in range(len(first_tokens)):
        meter.begin(run(i), 0.0)
    for i, now in enumerate(first_tokens):
        meter.first_token(run(i), 0, 1000, now)
    assert meter.read(first_tokens[-1]).prefill_tokens_per_s == pytest.approx(1000)


def test_reused_tokens_are_counted_per_second_and_fade() -> None:
    """Reused tokens are those that would be lost with a worker's cache."""
    meter = ThroughputMeter()
    for second in range(120):
        meter.begin(run(second), float(second))
        meter.first_token(run(second), 0, 10, second + 0.5, reused_tokens=300)
        meter.end(run(second), second + 0.6)
    assert meter.read(120.0).reused_tokens_per_s == pytest.approx(300, rel=0.05)
    assert meter.read(420.0).reused_tokens_per_s < 5


def test_a_few_tokens_say_nothing_about_the_speed() -> None:
    """A few tokens cost a step, whatever their number."""
    meter = ThroughputMeter()
    meter.begin(run(1), 0.0)
    meter.first_token(run(1), 0, 10, 0.1)
    assert meter.read(0.1).prefill_tokens_per_s == 0


def test_the_last_minute_counts_most() -> None:
    """An engine that has become twice as slow is known to be after a while."""
    meter, now = ThroughputMeter(), 0.0
    for i in range(400):
        meter.begin(run(i), now)
        now += 1.0 if i < 100 else 2.0
        meter.first_token(run(i), 0, 1000, now)
        meter.end(run(i), now)
    assert meter.read(now).prefill_tokens_per_s == pytest.approx(500, rel=0.02)
    assert meter.read(now).request_s == pytest.approx(2, rel=0.02)
    assert meter.read(now).busy == pytest.approx(1, rel=0.05)


@given(st.floats(0.05, 0.9), st.integers(1, 4))
def test_rate_and_busy_share_are_each_ranks(busy: float, ranks: int) -> None:
    """One prompt a second on each rank, of which it computes for `busy` seconds."""
    meter = ThroughputMeter(ranks)
    for second in range(600):
        for rank in range(ranks):
            name = run(f"{second}-{rank}")
            meter.begin(name, float(second))
        for rank in range(ranks):
            meter.first_token(run(f"{second}-{rank}"), rank, 1000, second + busy)
            meter.end(run(f"{second}-{rank}"), second + busy)
    pace = meter.read(600.0)
    assert (pace.prefills_per_s, pace.busy) == (pytest.approx(1, rel=0.05), pytest.approx(busy, rel=0.05))


def test_a_request_that_ends_without_a_token_is_forgotten() -> None:
    """Nothing is kept for it: a worker lives long."""
    meter = ThroughputMeter()
    meter.begin(run(1), 0.0)
    meter.end(run(1), 4.0)
    assert meter._began == {}
    assert meter.read(4.0).request_s == pytest.approx(4)


def test_waiting_for_a_seat_is_no_prefill() -> None:
    """Eight seats, answers of ten seconds: first tokens are a second apart, prefills took a tenth."""
    meter = ThroughputMeter()
    meter.begin(run("alone"), 0.0)
    meter.first_token(run("alone"), 0, 2000, 0.1)
    for i in range(8):
        meter.begin(run(i), 1.0)
        meter.first_token(run(i), 0, 2000, 2.0 + i, queued=True)
    pace = meter.read(10.0)
    assert pace.prefill_tokens_per_s == pytest.approx(20_000)
    assert pace.busy < 0.02
    assert pace.prefills_per_s > 0.8


def test_requests_that_answer_for_longer_than_others_did_are_expected_to_take_at_least_their_age() -> None:
    meter = ThroughputMeter()
    meter.begin(run("short"), 0.0)
    meter.first_token(run("short"), 0, 10, 0.1)
    meter.end(run("short"), 0.5)
    for i in range(2):
        meter.begin(run(i), 1.0)
        meter.first_token(run(i), 0, 10, 1.1)
    meter.begin(run("waits"), 1.0)  # without a seat
    assert meter.read(1.2).request_s == pytest.approx(0.5)
    assert meter.read(7.0).request_s == pytest.approx(6.0)
    for i in range(2):
        meter.end(run(i), 7.0)
    assert meter.read(60.0).request_s == pytest.approx(4.33, abs=0.4)


def test_a_request_has_its_seat_from_the_end_of_its_wait_on() -> None:
    """Two seconds, whether its prompt was computed there or pulled."""
    meter = ThroughputMeter()
    for name in ("computed", "pulled"):
        meter.begin(run(name), 0.0)
    meter.first_token(run("computed"), 0, 2000, 8.0, queued=True)
    meter.has_seat(run("pulled"), 8.0, queued=True)
    for name in ("computed", "pulled"):
        meter.end(run(name), 10.0)
    assert meter.read(10.0).request_s == pytest.approx(2)
