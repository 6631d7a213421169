"""The cell for a request that finds no room at home, and the names of cells in the settings."""

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from app.ids import CellId
from app.routing.candidates import PlaceLimits
from app.routing.cells import CellLoad, choose
from app.settings import load_settings
from tests.refusals import settings_error
from tests.unit.test_policy import candidate

A, B, C = CellId("a"), CellId("b"), CellId("c")
IDLE = CellLoad(requests=0, capacity=8, tokens=0, room=12)
RNG = Random(1)


def test_a_cells_load_is_that_of_its_workers_that_answer() -> None:
    """A draining worker, or one that only computes prompts, has no place for a request."""
    limits = PlaceLimits(max_queued=4)  # beyond 8
    workers = [
        candidate("one", limits=limits, requests=3, tokens=100),
        candidate("two", limits=limits, requests=10, tokens=50),
        candidate("draining", limits=limits, requests=1, draining=True),
        candidate("prefill", limits=limits, requests=1, role="prefill"),
    ]
    assert CellLoad.of(workers) == CellLoad(requests=13, capacity=16, tokens=150, room=9 + 2)
    assert CellLoad.of([]) == CellLoad()


@pytest.mark.parametrize("limits", [
    PlaceLimits(0), PlaceLimits(max_queued=100, queued_tokens=50), PlaceLimits(max_queued=100, active_blocks=0.5),
])  # fmt: skip
def test_a_worker_at_any_of_its_limits_has_no_room(limits: PlaceLimits) -> None:
    assert CellLoad.of([candidate(limits=limits, requests=8, tokens=50, blocks=500)]).room == 0


def test_the_cell_with_the_lowest_load_is_chosen() -> None:
    """The load is counted in requests per seat, so that a large cell gets more than a small one."""
    small, large = replace(IDLE, requests=2), replace(IDLE, requests=10, capacity=80, room=100)
    assert choose({A: small, B: large}, RNG) == B
    assert choose({A: small, B: replace(large, requests=30)}, RNG) == A


def test_waiting_tokens_decide_among_cells_with_as_many_requests() -> None:
    assert choose({A: replace(IDLE, tokens=10), B: replace(IDLE, tokens=9)}, RNG) == B


def test_a_cell_without_room_is_not_chosen_however_low_its_load() -> None:
    assert choose({A: replace(IDLE, room=0), B: replace(IDLE, requests=11)}, RNG) == B
    assert choose({A: replace(IDLE, room=0)}, RNG) is None
    assert choose({}, RNG) is None


def test_requests_sent_since_the_load_was_read_count() -> None:
    """The room that was seen is used up once before the next look, and shared among the cells."""
    sent_counts: Counter[CellId] = Counter()
    while (choice := choose({cell: IDLE.sent(sent_counts[cell]) for cell in (A, B, C)}, RNG)) is not None:
        sent_counts[choice] += 1
    assert sent_counts == {A: 12, B: 12, C: 12}
    assert {choose({A: IDLE, B: IDLE, C: IDLE}, Random(seed)) for seed in range(50)} == {A, B, C}


def test_all_cells_may_have_the_same_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own is left out; passwords are in no name; tokens of others come through their main Redis."""
    monkeypatch.setenv("XYLEM_CELLS", "redis://u:secret@a:6379/0#one, rediss://b/2#one,redis://u:secret@a:6379/0#two")
    settings = load_settings(redis_url="redis://v:other@a:6379/0", deployment="one", token_redis_urls="redis://t")
    assert [name for name, _ in settings.others()] == ["rediss://b/2#one", "redis://a:6379/0#two"]
    assert [(other.redis_url, other.deployment) for _, other in settings.others()] == [
        ("rediss://b/2", "one"),
        ("redis://u:secret@a:6379/0", "two"),
    ]
    assert all(other.token_redis_urls == () for _, other in settings.others())
    assert all(other.broker_url is None for _, other in settings.others())
    assert load_settings(cells="").others() == []


def test_a_cell_may_have_a_broker_of_its_own() -> None:
    """A cell without one has no separate broker, whatever this cell has."""
    settings = load_settings(cells="redis://a/0#x#broker=redis://b/1,redis://c/0#x", broker_url="redis://own")
    assert [(name, other.broker_url) for name, other in settings.others()] == [
        ("redis://a/0#x", "redis://b/1"),
        ("redis://c/0#x", None),
    ]


@pytest.mark.parametrize(("cells", "said"), [
    ("redis://a:6379/0", "has to be a URL of Redis, '#' and the cell's XYLEM_DEPLOYMENT"),
    ("redis://a:6379/0#", "has to be a URL of Redis"), ("#xylem", "has to be a URL of Redis"),
    ("redis://a:6379/0#two words", "has to be a URL of Redis"), ("http://a#xylem", "has to begin with redis://"),
    ("redis://a:port/0#xylem", "has no host:port"), ("redis://a/0#x,redis://u:secret@a/0#x", "is there twice"),
    ("redis://u:secret@a", "has to be a URL of Redis"), ("redis://a/0#x#broker=", "has to be a URL of Redis"),
    ("redis://a/0#x#broker=amqp://u:secret@b", "has to begin with redis://"),
])  # fmt: skip
def test_a_bad_list_of_cells_is_refused_without_its_passwords(cells: str, said: str) -> None:
    message = settings_error(cells=cells)
    assert "XYLEM_CELLS: " in message
    assert said in message
    assert "secret" not in message
