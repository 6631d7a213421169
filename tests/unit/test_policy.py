"""Placement is decided purely: these are its promises."""

from collections import Counter
from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.errors import NoWorker, Saturated
from app.ids import PoolId, WorkerId
from app.messages import Lease
from app.routing.fleet import Ask, Candidate, Limits
from app.routing.policy import EXPECTED_ANSWER, blocks_for, can_serve, idleness, is_full, place

ASK = Ask(prompt_tokens=100, max_tokens=50)
LIMITS = Limits(max_queued=4, retry_after_s=3)


def candidate(name: str = "w", *, requests: int = 0, blocks: int = 0, **lease: object) -> Candidate:
    own = Lease(WorkerId(name), PoolId("pool"), "both", "host", 1, 16, 1000, 8, 4096)
    return Candidate(replace(own, **lease), requests, blocks, tokens=0)


@st.composite
def fleets(draw: st.DrawFn) -> list[Candidate]:
    """Any workers: of all roles, some draining, some full, of all sizes."""
    return [
        Candidate(
            Lease(
                WorkerId(f"w{i}"),
                PoolId(draw(st.sampled_from(["a", "b"]))),
                draw(st.sampled_from(["both", "prefill", "decode"])),
                "host",
                1,
                draw(st.sampled_from([1, 16, 32])),
                draw(st.integers(1, 10_000)),
                draw(st.integers(1, 64)),
                4096,
                draining=draw(st.booleans()),
            ),
            draw(st.integers(0, 80)),
            draw(st.integers(0, 20_000)),
            draw(st.integers(0, 10**6)),
        )
        for i in range(draw(st.integers(0, 6)))
    ]


limits = st.builds(Limits, max_queued=st.integers(0, 20), retry_after_s=st.integers(1, 9))
asks = st.builds(Ask, prompt_tokens=st.integers(1, 10**6), max_tokens=st.integers(1, 10**6))


@given(asks, fleets(), limits, st.integers())
def test_a_request_goes_to_the_idlest_worker_that_may_take_it_and_is_not_full(
    ask: Ask, fleet: list[Candidate], limits: Limits, seed: int
) -> None:
    """And when there is none, the error says whether waiting helps."""
    able = [c for c in fleet if not c.lease.draining and c.lease.role != "prefill"]
    free = [c for c in able if c.requests < c.lease.max_running + limits.max_queued]
    if not able:
        with pytest.raises(NoWorker):
            place(ask, fleet, limits, Random(seed))
    elif not free:
        with pytest.raises(Saturated) as refused:
            place(ask, fleet, limits, Random(seed))
        assert refused.value.retry_after_s == limits.retry_after_s
    else:
        placement = place(ask, fleet, limits, Random(seed))
        chosen = next(c for c in free if c.lease.worker == placement.worker)
        assert idleness(chosen) == max(map(idleness, free))
        assert placement.pool == chosen.lease.pool
        assert (placement.blocks, placement.tokens) == (blocks_for(ask, chosen.lease.block_size), ask.prompt_tokens)


@given(fleets(), st.integers())
def test_the_same_data_and_random_state_give_the_same_placement(fleet: list[Candidate], seed: int) -> None:
    """A decision can be replayed."""

    def outcome() -> object:
        try:
            return place(ASK, fleet, LIMITS, Random(seed))
        except (NoWorker, Saturated) as exc:
            return type(exc)

    assert outcome() == outcome()


@given(st.integers(0, 11), st.integers(0, 999), st.integers(0, 11), st.integers(0, 999), st.integers())
def test_less_reserved_load_never_loses_to_more(r1: int, b1: int, r2: int, b2: int, seed: int) -> None:
    """Of two workers alike, one with fewer requests and blocks is taken, or one of two equally loaded."""
    less = candidate("less", requests=min(r1, r2), blocks=min(b1, b2))
    more = candidate("more", requests=max(r1, r2), blocks=max(b1, b2))
    assert idleness(less) >= idleness(more)
    if idleness(less) > idleness(more):
        assert place(ASK, [more, less], LIMITS, Random(seed)).worker == "less"


def test_equal_workers_share_evenly() -> None:
    """Ties are broken at random, not by the order in which Redis lists the workers."""
    fleet, rng = [candidate(f"w{i}") for i in range(4)], Random(7)
    counts = Counter(place(ASK, fleet, LIMITS, rng).worker for _ in range(4000))
    assert set(counts) == {"w0", "w1", "w2", "w3"}
    assert all(900 < count < 1100 for count in counts.values()), counts


def test_placing_one_after_the_other_keeps_workers_level() -> None:
    """With each placement counted before the next, no worker is ever two requests ahead."""
    load, rng = {f"w{i}": 0 for i in range(3)}, Random(1)
    for _ in range(30):
        fleet = [candidate(name, requests=requests) for name, requests in load.items()]
        load[place(ASK, fleet, LIMITS, rng).worker] += 1
        assert max(load.values()) - min(load.values()) <= 1


def test_a_worker_is_full_from_what_it_runs_and_may_queue() -> None:
    """`max_running` + `max_queued` requests fit, and not one more."""
    assert not is_full(candidate(requests=11), LIMITS)
    assert is_full(candidate(requests=12), LIMITS)


def test_full_blocks_count_as_much_as_full_seats() -> None:
    """A few long requests load an engine like many short ones."""
    assert idleness(candidate(requests=8)) == idleness(candidate(blocks=1000)) == 0.5
    assert idleness(candidate()) == 1.0


@pytest.mark.parametrize(("role", "draining", "able"), [
    ("both", False, True), ("decode", False, True), ("prefill", False, False),
    ("both", True, False), ("decode", True, False),
])  # fmt: skip
def test_only_workers_that_decode_and_stay_are_eligible(role: str, draining: bool, able: bool) -> None:
    """A draining worker only finishes what it has; a prefill worker can't answer."""
    assert can_serve(candidate(role=role, draining=draining)) is able


@given(asks, st.integers(1, 512))
def test_blocks_hold_the_prompt_and_the_expected_answer_with_less_than_one_to_spare(ask: Ask, size: int) -> None:
    """A `max_tokens` that merely defaults to the whole context doesn't reserve all of it."""
    tokens = ask.prompt_tokens + min(ask.max_tokens, EXPECTED_ANSWER)
    assert blocks_for(ask, size) == ceil(tokens / size)
    assert 0 <= blocks_for(ask, size) * size - tokens < size
