"""Attribution of an engine's time to the requests that it runs."""

from contextlib import ExitStack

import pytest

from app.runner import busy_time
from app.runner.busy_time import BusyPart, BusyTime


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(busy_time, "monotonic", clock)
    return clock


def test_requests_that_run_together_share_the_time_and_together_they_pay_all_of_it(clock: Clock) -> None:
    working = BusyTime()
    first, second = BusyPart(working), BusyPart(working)
    with ExitStack() as of_first:
        of_first.enter_context(working.one(first))
        clock.now += 2  # alone
        with working.one(second):
            clock.now += 4  # two together
            assert (first.seconds, second.seconds) == (4, 2)
            of_first.close()
            clock.now += 1  # the other alone
    clock.now += 50  # idle
    assert (first.seconds, second.seconds, working.seconds) == (4, 3, 7)


def test_a_request_that_gives_way_pays_only_while_it_runs(clock: Clock) -> None:
    working = BusyTime()
    aside, online = BusyPart(working), BusyPart(working)
    for _ in range(2):
        with working.one(aside):
            clock.now += 1
        with working.one(online):
            clock.now += 10
    assert (aside.seconds, online.seconds) == (2, 20)
