"""Canaries: the time at which an idle engine is asked for a token, its time limit, and what operators see of it."""

import pytest

from app.engines.base import EngineStats
from app.errors import RequestError
from app.runner.probed_work import ProbedWork
from workers.engine.canary import Idleness, patience_s


def test_a_worker_is_idle_since_its_last_request_or_probe() -> None:
    idleness = Idleness(100.0)
    assert idleness.seconds(100.0, 0, busy=False) == 0
    assert idleness.seconds(104.0, 0, busy=False) == 4
    assert idleness.seconds(107.0, 0, busy=True) == 0
    assert idleness.seconds(109.0, 0, busy=False) == 2
    idleness.ends(110.0)
    assert idleness.seconds(113.0, 0, busy=False) == 3


def test_a_request_between_two_looks_is_seen_by_its_tokens() -> None:
    idleness = Idleness(0.0)
    assert idleness.seconds(1.0, 5, busy=False) == 0
    assert idleness.seconds(9.0, 5, busy=False) == 8
    assert idleness.seconds(10.0, 6, busy=False) == 0


def test_an_engine_that_was_slow_gets_more_time_and_a_quick_one_does_not_lose_its() -> None:
    assert patience_s(0.0) == patience_s(0.01) > 1
    assert patience_s(30.0) == 60


def test_what_probes_cost_is_not_told_and_no_count_falls() -> None:
    """Engines tell of a step before its answer is here; SGLang a moment after it."""
    work = ProbedWork()
    assert tokens(work, 500) == 500
    with work.asked(1):
        assert [tokens(work, n) for n in (500, 501)] == [500, 500]
    assert [tokens(work, n) for n in (500, 501, 520)] == [500, 500, 519]


def test_a_probe_that_its_engine_refuses_hides_nothing_of_later_requests() -> None:
    work = ProbedWork()
    with pytest.raises(RequestError), work.asked(1):
        raise RequestError("no such thing")
    assert tokens(work, 20) == 20


def tokens(probed: ProbedWork, computed: int) -> int:
    return probed.without(EngineStats(prefill_tokens=computed)).prefill_tokens


def test_a_painters_probes_are_steps() -> None:
    work = ProbedWork()
    with work.asked(1):
        pass
    stats = work.without(EngineStats(running=2, paint_steps=31))
    assert stats == EngineStats(running=2, paint_steps=30)
