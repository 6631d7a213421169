"""Placement is decided purely: these are its promises."""

from collections import Counter
from math import ceil
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.errors import NoWorker, Saturated
from app.ids import PoolId, WorkerId
from app.messages.lease import Speeds
from app.pools.schema import Policy, Routing
from app.routing.candidates import Ask, Candidate, Option, PlaceLimits
from app.routing.cost import EXPECTED_ANSWER, load, new_blocks, uncached_tokens
from app.routing.policy import can_serve, is_full, loaded, pick, place
from tests import leases

ASK = Ask(prompt_tokens=100, max_tokens=50)
KV, LEAST = Routing(), Routing(policy="least_loaded")
POLICIES = get_args(Policy)


def candidate(name: str = "w", **fields: Any) -> Candidate:
    return leases.candidate(name, **{"speeds": Speeds(1000.0)} | fields)


def chosen(*fleet: Option, ask: Ask = ASK) -> set[str]:
    """The workers that it may go to: equal ones are drawn from."""
    return {place(ask, fleet, KV, Random(i)).placement.worker for i in range(20)}


def option(name: str = "w", cached: int = 0, coming: int | None = None, beginning: int = 0, **fields: Any) -> Option:
    return Option(candidate(name, **fields), cached, cached if coming is None else coming, beginning)


limits = st.builds(
    PlaceLimits,
    max_queued=st.integers(0, 20),
    active_blocks=st.none() | st.floats(0.1, 2),
    queued_tokens=st.none() | st.integers(1, 10**5),
)


paces = st.builds(
    Speeds,
    prefill_tokens_per_s=st.sampled_from([0.0, 500.0, 20_000.0]),
    prefills_per_s=st.floats(0, 100),
    busy=st.floats(0, 1),
    request_s=st.floats(0, 60),
)


@st.composite
def fleets(draw: st.DrawFn) -> list[Option]:
    """Any places: of all roles, some draining, some full, of all sizes, with any of the prompt cached."""
    options = []
    for i in range(draw(st.integers(0, 6))):
        cached_blocks = draw(st.integers(0, 100))
        waiting = draw(st.integers(0, 5))
        candidate_ = candidate(
            f"w{i}",
            limits=draw(limits),
            pool=PoolId(draw(st.sampled_from(["a", "b"]))),
            role=draw(st.sampled_from(["both", "prefill", "decode"])),
            draining=draw(st.booleans()),
            block_size=draw(st.sampled_from([1, 16, 32])),
            total_blocks=draw(st.integers(1, 10_000)),
            max_running=draw(st.integers(1, 64)),
            speeds=draw(paces),
            used_blocks=draw(st.integers(0, 10_000)),
            requests=draw(st.integers(0, 80)),
            blocks=draw(st.integers(0, 20_000)),
            tokens=draw(st.integers(0, 10**6)) if waiting else 0,
            waiting=waiting,
            since=draw(st.floats(-10, 0)),
        )
        coming = cached_blocks + draw(st.integers(0, 10))
        options.append(Option(candidate_, cached_blocks, coming, draw(st.sampled_from([0, coming + 20]))))
    return options


rules = st.builds(
    Routing,
    policy=st.sampled_from(POLICIES),
    temperature=st.sampled_from([0.0, 1e-322, 0.5]),
    prefill_weight=st.sampled_from([0.0, 1.0, 3.0]),
)
asks = st.builds(
    Ask,
    prompt_tokens=st.integers(1, 10**5),
    max_tokens=st.integers(1, 10**5),
    session=st.sampled_from([None, "session"]),
)


@given(asks, fleets(), rules, st.integers(), st.integers(0, 100))
def test_only_places_that_may_take_it_and_have_room_are_chosen(
    ask: Ask, fleet: list[Option], how: Routing, seed: int, turn: int
) -> None:
    """Every policy does so; if there is no such place, the error says whether waiting helps."""
    able = [o for o in fleet if not o.candidate.lease.draining and o.candidate.lease.worker.role != "prefill"]
    free = [o for o in able if not is_full(o.candidate)]
    if not able:
        with pytest.raises(NoWorker):
            place(ask, fleet, how, Random(seed), turn)
    elif not free:
        with pytest.raises(Saturated):
            place(ask, fleet, how, Random(seed), turn)
    else:
        to = place(ask, fleet, how, Random(seed), turn).placement
        choice = next(o for o in free if o.candidate.lease.worker.id == to.worker)
        assert to.pool == choice.candidate.lease.worker.pool
        assert to.blocks == new_blocks(ask, choice)
        assert to.tokens == uncached_tokens(ask, choice)


@given(fleets(), rules, st.integers(), st.integers(0, 100))
def test_the_same_data_and_random_state_give_the_same_placement(
    fleet: list[Option], how: Routing, seed: int, turn: int
) -> None:
    """A decision can be replayed."""

    def outcome() -> object:
        try:
            return place(ASK, fleet, how, Random(seed), turn)
        except (NoWorker, Saturated) as exc:
            return type(exc)

    assert outcome() == outcome()


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_workers_share_evenly(policy: Policy) -> None:
    """Ties are broken at random, not by the order in which Redis lists the workers."""
    fleet, rng, how = [option(f"w{i}") for i in range(4)], Random(7), Routing(policy=policy)
    counts = Counter(place(ASK, fleet, how, rng, turn).placement.worker for turn in range(4000))
    assert set(counts) == {"w0", "w1", "w2", "w3"}
    assert all(900 < count < 1100 for count in counts.values()), counts


def test_round_robin_takes_turns() -> None:
    """The load doesn't matter while there is room."""
    fleet = [option(f"w{i}", requests=i) for i in range(3)]
    how = Routing(policy="round_robin")
    workers = [place(ASK, fleet, how, Random(turn), turn).placement.worker for turn in range(6)]
    assert sorted(workers[:3]) == ["w0", "w1", "w2"]
    assert workers[:3] == workers[3:]


def test_power_of_two_never_takes_the_fullest_of_three() -> None:
    """The policy takes the emptier one of any two."""
    fleet, rng, how = [option(f"w{i}", requests=i) for i in range(3)], Random(1), Routing(policy="power_of_two")
    counts = Counter(place(ASK, fleet, how, rng).placement.worker for _ in range(900))
    assert set(counts) == {"w0", "w1"}
    assert 500 < counts[WorkerId("w0")] < 700  # two pairs of three have w0 in them


@pytest.mark.parametrize("policy", ["kv", "least_loaded"])
def test_placing_one_after_the_other_keeps_workers_level(policy: Policy) -> None:
    """Each placement is counted before the next, so no worker is ever two requests ahead."""
    fleet, rng = [candidate(f"w{i}", max_running=64) for i in range(3)], Random(1)
    for _ in range(30):
        to = place(ASK, [Option(c) for c in fleet], Routing(policy=policy), rng).placement
        fleet = [loaded(c, to) if c.lease.worker.id == to.worker else c for c in fleet]
        counts = [c.requests for c in fleet]
        assert max(counts) - min(counts) <= 1


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3), st.integers())
def test_the_least_loaded_has_the_smallest_share_of_its_seats_taken(r1: int, r2: int, times: int, seed: int) -> None:
    """A worker with more seats may have more requests; neither is full with those that are drawn here."""
    less = option("less", requests=min(r1, r2) * times, max_running=8 * times)
    more = option("more", requests=max(r1, r2))
    if r1 != r2:
        assert place(ASK, [more, less], LEAST, Random(seed)).placement.worker == "less"


@given(asks, fleets(), rules, st.integers(0, 5), st.integers(1, 50))
def test_more_overlap_never_raises_a_cost(ask: Ask, fleet: list[Option], how: Routing, index: int, more: int) -> None:
    """Other things being equal, who has more of the prompt is never the worse choice."""
    how = how.model_copy(update={"policy": "kv"})
    others = [*(o for o in fleet if can_serve(o.candidate) and not is_full(o.candidate)), option("free")]
    one = others.pop(index % len(others))
    better = replace(one, cached=one.cached + more, coming=one.coming + more)

    def cost(options: list[Option], of: Option) -> float:
        return next(c.total for o, c in place(ask, options, how, Random(0)).scored if o == of)

    assert cost([*others, better], better) <= cost([*others, one], one) + 1e-9


def test_a_placement_counts_at_once() -> None:
    """Its request, its blocks, and what of its prompt has to be computed."""
    fleet = [candidate("a", tokens=7, waiting=1, requests=2, blocks=3), candidate("b", draining=True)]
    to = place(ASK, [Option(c, cached=2, coming=2) for c in fleet], KV, Random(0)).placement
    assert to.worker == "a"
    a = loaded(fleet[0], to)
    assert (a.requests, a.blocks, a.tokens, a.waiting) == (3, 3 + to.blocks, 7 + 100 - 2 * 16, 2)


def test_a_beginning_that_cannot_be_resumed_yet_decides_between_equal_places_and_little_more() -> None:
    """Its engine keeps the point where two prompts part. A cached beginning is better, and so is an idle engine."""
    beginning_option = option("begun", beginning=20)
    queued_option = option("queued", beginning=20, tokens=1000, waiting=1, requests=1)
    ask, cached_option = Ask(prompt_tokens=400, max_tokens=5), option("cached", cached=20)
    assert chosen(beginning_option, option("other"), ask=ask) == {"begun"}
    assert chosen(beginning_option, cached_option, ask=ask) == {"cached"}
    assert chosen(queued_option, option("idle"), ask=ask) == {"idle"}
    assert chosen(option("both", cached=20, beginning=20), cached_option, ask=ask) == {"both", "cached"}


def test_a_cached_prefix_attracts() -> None:
    """All else equal."""
    assert chosen(option("a"), option("b", cached=5), option("c", cached=2)) == {"b"}


def test_a_long_queue_outweighs_a_cached_prefix() -> None:
    """100 tokens at 1,000 a second are not worth ten seconds of waiting."""
    assert chosen(option("a"), option("b", cached=6, tokens=10_000, waiting=3, requests=3)) == {"a"}


def test_siblings_go_where_their_prefix_is_on_its_way() -> None:
    """The first of them is still being computed, and the second need not compute it again."""
    other = option("b", coming=99, tokens=1600, waiting=1, requests=1, since=-0.5)
    assert chosen(option("a"), other, ask=Ask(prompt_tokens=1600, max_tokens=5)) == {"b"}


def test_siblings_spread_when_waiting_takes_longer_than_computing_anew() -> None:
    """A hot prefix is worth having twice before its only holder drowns."""
    other = option("b", coming=99, tokens=8000, waiting=5, requests=5)
    assert chosen(option("a"), other, ask=Ask(prompt_tokens=1600, max_tokens=5)) == {"a"}


def test_a_session_keeps_its_worker_until_that_is_much_dearer() -> None:
    """The worker is the same for every API replica, since it follows from the key alone."""
    fleet = [option(f"w{i}") for i in range(4)]
    ask = replace(ASK, session="session")
    (home,) = chosen(*fleet, ask=ask)
    others = [o for o in fleet if o.candidate.lease.worker.id != home]
    busy = option(home, tokens=1000, waiting=1)
    assert place(ask, [busy, *others], KV, Random(0)).placement.worker == home  # one second more
    assert place(ask, [option(home, tokens=9000, waiting=9), *others], KV, Random(0)).placement.worker != home


def test_only_the_sessions_of_a_worker_that_goes_move() -> None:
    """Rendezvous hashing."""
    fleet = [option(f"w{i}") for i in range(4)]
    homes = {s: place(replace(ASK, session=s), fleet, KV, Random(0)).placement.worker for s in map(str, range(200))}
    for s, home in homes.items():
        now = place(replace(ASK, session=s), fleet[1:], KV, Random(0)).placement.worker
        assert now == home or home == "w0"
    assert all(30 < count < 70 for count in Counter(homes.values()).values())


def test_temperature_spreads_over_good_places_and_prefers_better_ones() -> None:
    """0 takes the best; the higher, the more evenly."""
    fleet = [option("best", cached=6), option("good", cached=4), option("worst")]

    def share(temperature: float) -> dict[str, float]:
        rng, how = Random(3), Routing(temperature=temperature)
        counts = Counter(place(ASK, fleet, how, rng).placement.worker for _ in range(3000))
        return {name: counts[WorkerId(name)] / 3000 for name in ("best", "good", "worst")}

    assert share(0.0) == {"best": 1.0, "good": 0.0, "worst": 0.0}
    warm = share(0.5)
    assert warm["best"] > warm["good"] > warm["worst"] > 0
    assert share(50.0)["worst"] == pytest.approx(1 / 3, abs=0.05)


def test_a_worker_is_full_by_any_of_its_limits() -> None:
    """Seats, blocks that requests hold (what it reports, where that is more), prompt tokens that wait."""
    assert not is_full(candidate(requests=11))
    assert is_full(candidate(requests=12))
    half = PlaceLimits(max_queued=4, active_blocks=0.5)
    assert not is_full(candidate(limits=half, blocks=499))
    assert is_full(candidate(limits=half, blocks=500))
    assert is_full(candidate(limits=half, used_blocks=500))
    assert not is_full(candidate(limits=half, used_blocks=900, ranks=2))
    short = PlaceLimits(max_queued=4, queued_tokens=1000)
    assert not is_full(candidate(limits=short, tokens=999))
    assert is_full(candidate(limits=short, tokens=1000))


def test_full_blocks_count_as_much_as_full_seats() -> None:
    """A few long requests load an engine like many short ones."""
    assert load(candidate(requests=8)) == load(candidate(blocks=1000)) == 1.0
    assert load(candidate()) == 0.0


@pytest.mark.parametrize(("role", "draining", "able"), [
    ("both", False, True), ("decode", False, True), ("prefill", False, False),
    ("both", True, False), ("decode", True, False),
])  # fmt: skip
def test_only_workers_that_decode_and_stay_are_eligible(role: str, draining: bool, able: bool) -> None:
    """A draining worker only finishes what it has; a prefill worker can't answer."""
    assert can_serve(candidate(role=role, draining=draining)) is able


@given(asks, st.integers(1, 512), st.integers(0, 100))
def test_blocks_hold_the_prompt_and_the_expected_answer_with_less_than_one_to_spare(
    ask: Ask, size: int, cached: int
) -> None:
    """Cached tokens need none, and a `max_tokens` that merely defaults to the whole context isn't reserved whole."""
    own_option = option(cached=cached, block_size=size)
    tokens = uncached_tokens(ask, own_option) + min(ask.max_tokens, EXPECTED_ANSWER)
    assert new_blocks(ask, own_option) == ceil(tokens / size)
    assert 1 <= uncached_tokens(ask, own_option) <= ask.prompt_tokens


def test_a_full_cache_is_waited_for() -> None:
    """The wait is until running requests release the missing blocks: 60 of 1,000 held ones at 1,000 in 10 s."""
    ask = Ask(prompt_tokens=800, max_tokens=160)
    full = option("full", blocks=1000, requests=1, speeds=Speeds(1000.0, request_s=10.0))
    room = option("room", blocks=900, requests=1, speeds=Speeds(1000.0, request_s=10.0))
    costs = {o.candidate.lease.worker.id: cost for o, cost in place(ask, [full, room], KV, Random(0)).scored}
    assert costs[WorkerId("full")].wait - costs[WorkerId("room")].wait == pytest.approx(0.6, abs=0.01)


def test_an_idle_fleets_first_requests_are_shared_by_what_is_reserved() -> None:
    """The emptier engine takes shorter steps, where prefill costs the same everywhere."""
    assert chosen(option("a", requests=3), option("b", requests=2), option("c", blocks=999)) == {"b"}


def test_a_busy_fleet_minds_work_more_than_waiting() -> None:
    """Work that is done twice delays later requests: the same choice turns with the load."""

    for prefills_per_s, busy, best in ((0.1, 0.1, "idle"), (2.0, 0.85, "holder")):
        speeds = Speeds(1000.0, prefills_per_s=prefills_per_s, busy=busy)
        holder = option("holder", cached=62, tokens=1200, waiting=1, requests=1, speeds=speeds)
        assert chosen(holder, option("idle", speeds=speeds), ask=Ask(1000, 5)) == {best}


def test_picking_needs_no_two_costs_to_differ() -> None:
    """A softmax over equal costs would divide by nothing."""
    warm = Routing(temperature=1.0)
    scores = place(ASK, [option("a"), option("b")], warm, Random(0)).scored
    assert {pick(scores, warm, None, Random(i)).candidate.lease.worker.id for i in range(20)} == {"a", "b"}
