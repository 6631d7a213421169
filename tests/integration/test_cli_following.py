"""Tests which parts `xylem up --planner` starts and ends as the planner wants it.

Real processes take the place of workers.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from app.cli.following import Following
from app.cli.supervisor import Component, Supervisor
from app.ids import PoolId, WorkerId
from app.planner.desired import Desired
from tests.stack import wait_until

POOL = PoolId("pool")


def worker(number: int, script: str = "sleep 600") -> Component:
    return Component(f"{POOL}-{number}", ["/bin/sh", "-c", script], os.environ, lambda _: True, 0)


class Planned:
    """A pool of three at most, whose planner says what the test has set."""

    def __init__(self, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("app.cli.following._EVERY_S", 0.0)
        self.supervisor, self.workers = supervisor, [worker(number) for number in range(3)]
        self.desired, self.pids = Desired(0, "traffic", 1, 0.0, act=True), dict[WorkerId, int]()
        self.following = Following(supervisor, {POOL: self.workers}, self._read, 60)

    def _read(self) -> Mapping[PoolId, tuple[Desired, Mapping[WorkerId, int]]]:
        return {POOL: (self.desired, self.pids)}

    def wants(self, workers: int, *drain: str, act: bool = True) -> list[int]:
        """The numbers of the workers that are there then, and don't end."""
        self.desired = Desired(workers, "traffic", 1, 0.0, act, [WorkerId(name) for name in drain])
        self.following.look()
        return self.there()

    def there(self) -> list[int]:
        return [i for i, one in enumerate(self.workers) if self.supervisor.has(one) and not one.retiring]

    def lease(self, *numbers: int) -> None:
        for number in numbers:
            process = self.workers[number].process
            assert process is not None
            self.pids[WorkerId(f"w{number}")] = process.pid
            self.workers[number].ready = True


def test_workers_are_started_as_many_as_are_wanted_and_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Supervisor(tmp_path) as supervisor:
        pool = Planned(supervisor, monkeypatch)
        assert pool.wants(2) == [0, 1]
        assert pool.wants(2) == [0, 1]
        assert pool.wants(7) == [0, 1, 2]


def test_advice_starts_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Supervisor(tmp_path) as supervisor:
        pool = Planned(supervisor, monkeypatch)
        assert pool.wants(2, act=False) == []
        pool.wants(2)
        pool.lease(0, 1)
        assert pool.wants(0, "w0", "w1", act=False) == [0, 1]


def test_those_that_take_no_requests_yet_end_first_and_then_those_that_the_plan_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No others end: what they have in their caches may be worth more."""
    with Supervisor(tmp_path) as supervisor:
        pool = Planned(supervisor, monkeypatch)
        pool.wants(3)
        pool.lease(0, 1)
        assert pool.wants(2, "w0") == [0, 1]
        assert pool.wants(1, "gone", "w0", "w1") == [1]
        assert pool.wants(0) == [1]


def test_one_that_was_ended_is_not_started_again_before_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Supervisor(tmp_path) as supervisor:
        pool = Planned(supervisor, monkeypatch)
        pool.wants(1)
        pool.lease(0)
        first = pool.pids[WorkerId("w0")]
        pool.wants(0, "w0")
        _watch_until(supervisor, lambda: not supervisor.has(pool.workers[0]))
        assert not psutil.pid_exists(first)
        assert pool.wants(1) == [0]
        process = pool.workers[0].process
        assert process is not None
        assert process.pid != first


def test_one_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    with Supervisor(tmp_path) as supervisor:
        stubborn = worker(0, "trap '' TERM; echo on; while :; do sleep 0.1; done")
        supervisor.start(stubborn)
        supervisor.wait_ready(stubborn)
        wait_until(lambda: supervisor.log_file(stubborn).read_text(), "the trap is set")
        supervisor.retire(stubborn, 0.3)
        _watch_until(supervisor, lambda: not supervisor.has(stubborn))


class _Seen(Exception):
    """The test's condition, which it waits for, has come."""


def _watch_until(supervisor: Supervisor, seen: Callable[[], bool]) -> None:
    def look() -> None:
        if seen():
            raise _Seen

    with pytest.raises(_Seen):
        supervisor.watch(look)
