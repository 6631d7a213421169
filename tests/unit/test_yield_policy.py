"""Requests that give way never cost the others more than was allowed: their place, and what they get there."""

from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.errors import NoWorker, Saturated
from app.pools.schema import Aside, Routing
from app.routing.candidates import Ask, Option, PlaceLimits
from app.routing.cost import EXPECTED_ANSWER, held_blocks
from app.routing.policy import can_serve, is_full, loaded, place
from app.routing.preemptible import FULL
from app.runner.yield_policy import EngineLoad, Need, may_enter, most, pause, taken, too_many
from tests.leases import changed
from tests.unit.test_policy import KV, asks, candidate, fleets, option, rules

ASIDE = Ask(prompt_tokens=100, max_tokens=50, aside=True)


@st.composite
def with_aside(draw: st.DrawFn) -> list[Option]:
    """Any fleet, with any such requests in it."""
    fleet = []
    for o in draw(fleets()):
        aside = {"aside": draw(st.integers(0, 40)), "aside_blocks": draw(st.integers(0, 5000))}
        lease = changed(o.candidate.lease, aside_most=draw(st.integers(0, 64)))
        fleet.append(Option(replace(o.candidate, lease=lease, **aside), o.cached, o.coming))
    return fleet


@given(asks, with_aside(), rules, st.integers())
def test_an_aside_request_goes_only_where_there_is_slack(
    ask: Ask, fleet: list[Option], how: Routing, seed: int
) -> None:
    """The request is placed if there is any."""
    ask = replace(ask, aside=True)

    def room(o: Option) -> bool:
        c = o.candidate
        tokens = ask.prompt_tokens - min(max(o.cached, o.coming) * c.lease.worker.block_size, ask.prompt_tokens - 1)
        new = -(-(tokens + min(ask.max_tokens, EXPECTED_ANSWER)) // c.lease.worker.block_size)
        used_blocks = max(c.blocks + c.aside_blocks, c.lease.load.used_blocks)
        return used_blocks + new <= FULL * c.lease.worker.total_blocks or not (c.requests or c.aside)

    slack = [
        o.candidate.lease.worker.id
        for o in fleet
        if can_serve(o.candidate) and not o.candidate.waiting and o.candidate.aside < o.candidate.lease.load.aside_most
        and room(o)
    ]  # fmt: skip
    try:
        to = place(ask, fleet, how, Random(seed)).placement
    except (NoWorker, Saturated):
        assert not slack
    else:
        assert to.worker in slack


@given(asks, fleets(), rules, st.integers(), st.data())
def test_aside_requests_do_not_change_the_placement_of_online_ones(
    ask: Ask, fleet: list[Option], how: Routing, seed: int, data: st.DataObject
) -> None:
    """Their number doesn't matter, nor the blocks that they hold."""
    fuller_fleet = []
    for o in fleet:
        lease, blocks = o.candidate.lease, data.draw(st.integers(0, 1000))
        lease = changed(lease, used_blocks=lease.load.used_blocks + blocks, aside=3)
        fuller_fleet.append(Option(replace(o.candidate, lease=lease, aside=3, aside_blocks=blocks), o.cached, o.coming))
    try:
        expected_placement = place(ask, fleet, how, Random(seed)).placement
    except (NoWorker, Saturated) as exc:
        with pytest.raises(type(exc)):
            place(ask, fuller_fleet, how, Random(seed))
    else:
        assert place(ask, fuller_fleet, how, Random(seed)).placement == expected_placement


def test_blocks_of_aside_requests_count_as_free() -> None:
    full = candidate(limits=PlaceLimits(4, active_blocks=0.5), used_blocks=900, blocks=50, aside_blocks=800)
    assert held_blocks(full) == 100
    assert not is_full(full)
    assert is_full(replace(full, aside_blocks=0))


def test_among_those_with_slack_the_cached_prefix_decides() -> None:
    fleet = [option("cold", aside_most=9), option("warm", cached=6, aside_most=9), option("no", cached=6)]
    assert place(ASIDE, fleet, KV, Random(0)).placement.worker == "warm"


def test_aside_requests_see_each_other_as_load() -> None:
    fleet = [option("a", aside_most=9, aside=5), option("b", aside_most=9)]
    assert place(ASIDE, fleet, KV, Random(0)).placement.worker == "b"


def test_what_was_placed_in_this_round_counts_apart() -> None:
    o = option("w", aside_most=1)
    to = place(ASIDE, [o], KV, Random(0)).placement
    after = loaded(o.candidate, to, aside=True)
    assert (after.aside, after.aside_blocks, after.requests, held_blocks(after)) == (1, to.blocks, 0, 0)
    with pytest.raises(Saturated):
        place(ASIDE, [Option(after)], KV, Random(0))


def test_one_that_is_larger_than_the_slack_can_be_runs_on_an_empty_worker() -> None:
    large = Ask(prompt_tokens=15_500, max_tokens=50, aside=True)
    assert place(large, [Option(candidate(aside_most=8))], KV, Random(0)).placement.blocks > FULL * 1000
    with pytest.raises(Saturated):
        place(large, [Option(candidate(aside_most=8, requests=1))], KV, Random(0))


# At the gate.

shares = st.builds(Aside, step_share=st.floats(0, 1), prefill_share=st.floats(0, 1))
loads = st.builds(
    EngineLoad,
    seats=st.integers(1, 256),
    blocks=st.integers(1, 10_000),
    used=st.integers(0, 12_000),
    online=st.integers(0, 300),
    aside=st.integers(0, 256),
    step_s=st.floats(0, 0.1),
    request_step_s=st.just(0.0) | st.floats(1e-6, 0.01),
)
roomy = st.builds(  # most of those above are full
    EngineLoad,
    seats=st.integers(32, 256),
    blocks=st.integers(5000, 10_000),
    used=st.integers(0, 4000),
    online=st.integers(1, 16),
    aside=st.integers(0, 8),
    step_s=st.floats(0.001, 0.1),
    request_step_s=st.just(0.0) | st.floats(1e-6, 1e-4),
)
needs = st.builds(Need, seats=st.integers(1, 8), blocks=st.integers(1, 500), tokens=st.integers(1, 10_000))


@given(loads | roomy, shares, st.lists(needs, max_size=70))
def test_beside_others_no_more_stay_than_a_step_may_get_longer(
    load: EngineLoad, share: Aside, inside: list[Need]
) -> None:
    load = replace(load, aside=sum(w.seats for w in inside))
    leaving_count = too_many(load, share, inside)
    stay = inside[: len(inside) - leaving_count]
    seats = sum(w.seats for w in stay)
    if not load.online:
        assert not leaving_count
        return
    assert seats + load.online < load.seats or not seats, "a seat is left to who may come"
    if load.request_step_s and seats:
        alone = load.step_s + load.online * load.request_step_s
        assert seats * load.request_step_s <= share.step_share * alone * (1 + 1e-9)
    used_blocks = load.used - sum(w.blocks for w in inside[len(stay) :])
    assert used_blocks <= FULL * load.blocks or not stay, "and blocks for the prompts that have come"
    if leaving_count:  # and no more go than have to
        seats += inside[-leaving_count].seats
        used_with_one_more = load.used - sum(w.blocks for w in inside[len(inside) - leaving_count + 1 :])
        assert seats > most(load, share) or used_with_one_more > FULL * load.blocks


@given(roomy, shares, needs, st.just(0) | st.integers(1, 400))
def test_who_enters_need_not_go_at_once(load: EngineLoad, share: Aside, need: Need, computing: int) -> None:
    assume(may_enter(load, share, need, computing, 10_000.0))
    new_load = replace(load, aside=load.aside + need.seats, used=load.used + need.blocks)
    assert too_many(new_load, share, [need]) == 0


@given(loads, shares, needs)
def test_an_empty_engine_takes_any(load: EngineLoad, share: Aside, need: Need) -> None:
    assert may_enter(replace(load, online=0, aside=0), share, need, 0, 1.0)


@given(loads, shares)
def test_what_is_taken_may_run_or_waits_for_a_seat(load: EngineLoad, share: Aside) -> None:
    """Nothing is taken that could not get in."""
    assert taken(load, share) <= load.seats + max(2, load.seats // 4)
    if load.online and (not most(load, share) or not share.prefill_share):
        assert taken(load, share) == 0


def test_the_usual_numbers() -> None:
    """The numbers are of a large engine: 7 ms a step, 0.05 ms for each request."""
    load, share = EngineLoad(64, 8192, step_s=0.007, request_step_s=0.00005), Aside()
    assert most(load, share) == 60
    assert most(replace(load, online=1), share) == 4
    assert most(replace(load, online=40), share) == 5
    assert most(replace(load, online=58), share) == 2, "and a seat in sixteen is free"
    assert most(replace(load, online=1, request_step_s=0.0), share) == 8, "before it was measured"
    assert most(replace(load, online=1), Aside(step_share=0)) == 0
    assert most(EngineLoad(1, 100), share) == 1, "also an engine with one seat has idle time"


def test_prompts_take_their_share_of_the_time() -> None:
    assert pause(1000, 25_000.0, 0.007, 0.02, Aside()) == pytest.approx(4.0)
    assert pause(10, 25_000.0, 0.007, 0.0, Aside()) == pytest.approx(0.7), "one step in a hundred"
    assert pause(1000, 25_000.0, 0.007, 0.5, Aside(prefill_share=0)) == float("inf")
    beside_others = pause(1000, 25_000.0, 0.007, 0.3, Aside())
    assert beside_others == pytest.approx(0.04 / 0.03), "a tenth of what the others' take"


def test_after_a_quiet_minute_no_seat_is_kept_free_and_prompts_come_in_larger_portions() -> None:
    load, need = EngineLoad(64, 8192, aside=1, quiet_s=600.0), Need(1, 8, 250)
    assert most(load, Aside()) == 64
    assert may_enter(load, Aside(), need, 5 * 10_000, 10_000.0)
    assert not may_enter(load, Aside(), need, 6 * 10_000, 10_000.0)
    never = replace(load, quiet_s=float("inf"))
    assert may_enter(never, Aside(), need, 10**9, 10_000.0)


def test_with_nobody_there_prompts_come_in_small_portions() -> None:
    """A request that comes then waits for a short step."""
    load, need = EngineLoad(64, 8192, aside=1), Need(1, 8, 250)
    assert may_enter(load, Aside(), need, 250, 10_000.0)
    assert not may_enter(load, Aside(), need, 500, 10_000.0)
    assert may_enter(load, Aside(), replace(need, tokens=9000), 0, 10_000.0), "a long one alone"
