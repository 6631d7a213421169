"""Choice of the workers that sleep and wake, and the order in which weights change."""

from pathlib import Path
from typing import Any

import pytest

from app.errors import RequestError
from app.ids import WorkerId
from app.messages.lease import EngineState, Lease
from app.routing.pool_state import allowed, sleeps, to_sleep, to_wake, waves, why_none
from tests import leases
from tests.models import pools_error
from tests.present import present

ALL = [WorkerId(name) for name in "abcd"]


def lease(name: str, *, running: int = 0, **state: Any) -> Lease:
    return leases.lease(name, running=running, state=EngineState(**state))


def test_those_with_the_fewest_requests_sleep_and_so_many_stay_awake() -> None:
    fleet = [lease("a", running=5), lease("b"), lease("c", running=2), lease("d", asleep=1)]
    assert to_sleep(fleet, ALL, 0) == ["b", "c", "a"]
    assert to_sleep(fleet, ALL, 2) == ["b"]
    assert to_sleep(fleet, ALL, 9) == []


def test_those_that_nobody_asked_to_sleep_count_as_staying_awake() -> None:
    fleet = [lease("a"), lease("b"), lease("c", paused="wait")]
    assert to_sleep(fleet, [WorkerId("a")], 1) == ["a"]
    assert to_sleep(fleet, [WorkerId("a")], 2) == []


def test_paused_ones_sleep_whoever_stays_awake() -> None:
    fleet = [lease("a"), lease("b"), lease("c", paused="keep"), lease("d", paused="keep", asleep=1)]
    assert to_sleep(fleet, ALL, 2) == ["c"]
    assert to_sleep(fleet, ALL, 1) == ["c", "a"]


def test_a_worker_that_starts_sleeps_unless_it_is_needed() -> None:
    assert not sleeps(0, 1)
    assert sleeps(1, 1)
    assert sleeps(0, 0)


def test_the_one_that_wakes_soonest_is_woken_first() -> None:
    fleet = [lease("a", asleep=2), lease("b"), lease("c", asleep=1), lease("d", asleep=1, changing=True)]
    assert to_wake(fleet) == ["c", "a"]


def test_weights_change_one_worker_after_the_other() -> None:
    fleet = [lease("d"), lease("c"), lease("b"), lease("a", weights="v1")]
    assert waves(fleet, "v2", rolling=True) == [["a"], ["b"], ["c"], ["d"]]
    assert waves(fleet, "v1", rolling=True) == [["b"], ["c"], ["d"]]
    assert waves(fleet, "v2", rolling=False) == [["a", "b", "c", "d"]]
    assert waves([lease("a", weights="v1")], "v1", rolling=False) == []


def test_as_many_at_a_time_as_leave_some_awake() -> None:
    fleet = [lease(name) for name in "abcde"]
    assert waves(fleet, "v1", rolling=True, keep_awake=3) == [["a", "b"], ["c", "d"], ["e"]]
    with pytest.raises(RequestError, match="keep_awake=5"):
        waves(fleet, "v1", rolling=True, keep_awake=5)


def test_those_that_serve_nobody_change_first_and_together() -> None:
    fleet = [lease("a"), lease("b", asleep=1), lease("c", paused="keep")]
    assert waves(fleet, "v1", rolling=True) == [["b", "c"], ["a"]]
    assert waves(fleet[1:], "v1", rolling=True, keep_awake=0) == [["b", "c"]]


def test_a_pool_sleeps_only_if_all_of_it_does() -> None:
    assert why_none([]) is None
    assert why_none([lease("a", asleep=1), lease("b")]) is None
    refusal = present(why_none([lease("a", asleep=1), lease("b", asleep=2)]))
    assert refusal.retry_after_s


def test_weights_come_from_below_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    (folder / "v2").mkdir(parents=True)
    (folder / "out").symlink_to(tmp_path)
    allowed(str(folder / "v2"), folder)
    for path in (str(tmp_path / "v2"), str(folder / "../x"), str(folder / "out" / "x"), "weights/v2"):
        with pytest.raises(RequestError, match="below XYLEM_WEIGHTS_FOLDER"):
            allowed(path, folder)
    with pytest.raises(RequestError, match="not set"):
        allowed(str(folder / "v2"), None)


def test_no_engine_has_a_third_level_of_sleep(tmp_path: Path) -> None:
    error = pools_error(tmp_path, "pools: {a: {model: m, engine: mock, sleep_level: 3}}")
    assert "pools.a.sleep_level" in error
    assert "no engine has another one" in error
