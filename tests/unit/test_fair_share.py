"""Choice of the next batch: fairness and deadlines, as properties of pure functions."""

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.batch.fair_share import LINES, Running, is_urgent, lines_a_minute, room, share_parts, weight
from app.batch.records import Batch, BatchOrder
from app.ids import BatchId, FileId, KeyId
from app.tenants.limit_table import Budget
from app.tenants.rates_and_budgets import Account, Left

NOW = 1_000_000.0
MANY = 10_000  # parts: more than batch workers are ever asked to have


def batch(*, began_ago: float, left_s: float, done: int, left: int) -> Batch:
    began = int(NOW - began_ago)
    order = BatchOrder(BatchId("b"), "", "/v1/completions", FileId("f"), "24h", began, int(NOW + left_s))
    return Batch(order, "in_progress", "m", done + left, done, in_progress_at=began)


keys = st.sampled_from(["a", "b", "c"])
runnings = st.lists(
    st.builds(
        Running, st.uuids().map(lambda u: BatchId(str(u))), keys, st.just("m"),
        st.integers(0, 30), st.integers(0, 10), st.floats(1, 16), st.floats(0, 100),
    ),
    max_size=8, unique_by=lambda r: r.batch,
)  # fmt: skip


@given(runnings, st.integers(0, 60), st.integers(0, 200))
def test_all_room_is_used_and_no_part_is_sent_that_there_is_not(
    running: list[Running], room: int, capacity: int
) -> None:
    """No part is sent that no batch worker could have, either."""
    parts = share_parts(running, {"m": room}, capacity)
    todo = {r.batch: r.todo for r in running}
    out = sum(r.out for r in running)
    assert sum(parts.values()) == min(room, sum(todo.values()), max(0, capacity - out))
    assert all(0 < count <= todo[id_] for id_, count in parts.items())


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 60))
def test_two_api_keys_with_enough_to_do_get_the_same_however_many_batches_each_has(
    ours: int, theirs: int, room: int
) -> None:
    running = [Running(BatchId(f"{k}{i}"), k, "m", 100, 0) for k, n in (("a", ours), ("b", theirs)) for i in range(n)]
    parts = share_parts(running, {"m": room}, MANY)
    of = {k: sum(n for id_, n in parts.items() if id_.startswith(k)) for k in "ab"}
    assert abs(of["a"] - of["b"]) <= 1


@given(st.integers(1, 6), st.integers(1, 60))
def test_batches_of_one_key_get_the_same(count: int, room: int) -> None:
    running = [Running(BatchId(str(i)), "a", "m", 100, 0) for i in range(count)]
    parts = share_parts(running, {"m": room}, MANY)
    shares = [parts.get(r.batch, 0) for r in running]
    assert max(shares) - min(shares) <= 1


@given(st.integers(2, 6))
def test_with_room_for_one_at_a_time_each_batch_has_its_turn(count: int) -> None:
    running = {BatchId(str(i)): Running(BatchId(str(i)), str(i % 2), "m", 100, 0) for i in range(count)}
    turns: list[BatchId] = []
    for now in range(1, 10 * count):
        ((batch_id, _),) = share_parts(running.values(), {"m": 1}, MANY).items()
        turns.append(batch_id)
        running[batch_id] = replace(running[batch_id], last_sent=float(now), todo=running[batch_id].todo - 1)
    of_even = [turn for turn in turns if int(turn) % 2 == 0]
    assert set(turns) == set(running)
    assert abs(2 * len(of_even) - len(turns)) <= 1, "each key has half of the turns"


@given(st.floats(1, 16))
def test_a_heavier_batch_gets_more_in_proportion(heavy: float) -> None:
    running = [Running(BatchId("light"), "a", "m", 1000, 0), Running(BatchId("heavy"), "a", "m", 1000, 0, heavy)]
    parts = share_parts(running, {"m": 170}, MANY)
    assert parts["heavy"] / parts["light"] == pytest.approx(heavy, rel=0.15)


@given(st.integers(0, 2000), st.integers(0, 50), st.integers(0, 64))
def test_lines_are_out_for_all_seats_and_half_as_many_more(seats: int, out: int, answered_each: int) -> None:
    """The number of lines that each part still has doesn't matter."""
    running = [Running(BatchId("x"), "a", "m", 9, out, answered=out * answered_each)]
    more = room(seats, running)
    remaining_lines = out * (64 - answered_each)
    if not seats:
        assert more == 0
    elif more:
        assert 1.5 * seats + 64 <= remaining_lines + more * 64 < 1.5 * seats + 2 * 64
    else:
        assert remaining_lines >= 1.5 * seats + 64


def test_a_model_without_room_holds_up_no_other_one() -> None:
    running = [Running(BatchId("x"), "a", "full", 9, 3), Running(BatchId("y"), "a", "free", 9, 0)]
    assert share_parts(running, {"full": 0, "free": 2}, MANY) == {"y": 2}


def test_models_share_what_batch_workers_can_have_as_keys_do() -> None:
    """The room that one model's engines have doesn't matter."""
    running = [Running(BatchId("x"), "a", "big", 999, 0), Running(BatchId("y"), "b", "small", 9, 0)]
    assert share_parts(running, {"big": 400, "small": 3}, 64) == {"x": 61, "y": 3}


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.integers(0, 50_000), st.integers(1, 50_000))
def test_a_batch_weighs_more_the_less_time_it_has(began_ago: float, left_s: float, done: int, left: int) -> None:
    """The batches have run for the same time at the same pace."""
    sooner = weight(batch(began_ago=began_ago, left_s=left_s, done=done, left=left), NOW)
    later = weight(batch(began_ago=began_ago, left_s=left_s * 2 + 1, done=done, left=left), NOW)
    assert 1.0 <= later <= sooner <= 16.0


def test_a_batch_that_will_be_done_in_time_weighs_one_and_waits_for_idle_engines() -> None:
    good = batch(began_ago=3600, left_s=3600, done=600, left=500)
    assert weight(good, NOW) == 1.0
    assert not is_urgent(good, NOW)


def test_one_that_would_be_late_weighs_by_how_much_and_is_urgent_in_the_second_half_of_its_time() -> None:
    late = batch(began_ago=3600, left_s=3600, done=250, left=750)
    assert weight(late, NOW) == pytest.approx(3.0, rel=0.01)
    assert is_urgent(late, NOW)
    assert not is_urgent(batch(began_ago=1000, left_s=6200, done=10, left=990), NOW)


def test_in_the_last_tenth_every_batch_is_urgent_that_has_something_left() -> None:
    assert is_urgent(batch(began_ago=95, left_s=5, done=99, left=1), NOW)
    assert not is_urgent(batch(began_ago=95, left_s=5, done=100, left=0), NOW)


def limits(spent: float = 0.0, reserved: float = 0.0, **limits: Any) -> tuple[Account, Left]:
    return Account("This API key", "key_1", "key_1", **limits), Left(spent=spent, reserved=reserved)


def test_lines_a_minute_are_those_of_requests_or_of_tokens() -> None:
    """A line is expected to take as many tokens as those so far, or as routing expects. The tightest limit counts."""
    new = batch(began_ago=10, left_s=1000, done=0, left=300)
    assert lines_a_minute(new, []) == inf
    assert lines_a_minute(new, [limits(requests=2)]) == 2
    assert lines_a_minute(new, [limits(tokens=2560)]) == 10
    assert lines_a_minute(new, [limits(requests=99, tokens=100)]) == 100 / 256
    assert lines_a_minute(replace(new, completed=10, completion=50), [limits(tokens=100)]) == 20
    assert lines_a_minute(new, [limits(requests=9), limits(requests=7)]) == 7


def test_without_a_budget_left_no_lines_are_sent() -> None:
    """Lines that are sent would wait in the place of others."""
    new = batch(began_ago=10, left_s=1000, done=0, left=300)
    assert lines_a_minute(new, [limits(), limits(99.0, budget=Budget(100))]) == inf
    assert lines_a_minute(new, [limits(), limits(100.0, budget=Budget(100))]) == 0


def test_one_part_at_a_time_asks_whether_what_is_left_of_a_budget_is_reserved_no_more() -> None:
    """All others would be sent, understood and given back again and again."""
    new = batch(began_ago=10, left_s=1000, done=0, left=300)
    assert lines_a_minute(new, [limits(40.0, 59.0, budget=Budget(100))]) == inf
    line_rate = lines_a_minute(new, [limits(40.0, 60.0, budget=Budget(100))])
    batches = [Running(BatchId(name), KeyId("k"), "m", 5, 0, most=line_rate) for name in ("a", "b")]
    assert sum(share_parts(batches, {"m": 100}, 64).values()) == 1
    later_batches = [replace(batches[0], todo=4, out=1), batches[1]]
    assert share_parts(later_batches, {"m": 100}, 64) == {}


def test_lines_that_wait_for_their_keys_limits_take_no_room_from_others() -> None:
    """A key, however many batches it has, gets no more parts until those it has are answered."""
    slow = [Running(BatchId(f"s{i}"), KeyId("slow"), "m", 5, 1, most=2) for i in range(10)]
    free = Running(BatchId("f"), KeyId("free"), "m", 5, 0)
    assert room(4, slow) == room(4, []) == 2
    assert share_parts([*slow, free], {"m": 2}, MANY) == {"f": 2}
    nearly = replace(slow[0], answered=LINES - 1)
    assert share_parts([nearly, free], {"m": 3}, MANY) == {"f": 2, "s0": 1}
    assert share_parts([nearly], {"m": 5}, MANY) == {"s0": 1}
