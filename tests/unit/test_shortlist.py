"""The shortlist of places, against a look at all of them."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.errors import NoWorker, Saturated
from app.messages.lease import Speeds
from app.pools.schema import Routing
from app.routing.candidates import Ask, Candidate, Matches, Option, PlaceLimits
from app.routing.cost import Fleet, PoolSpeeds, kv_cost
from app.routing.lines import Lines
from app.routing.policy import affinity, can_serve, is_full, loaded, place
from app.routing.shortlist import home, shortlist
from tests.unit.test_policy import candidate, paces

BLOCK, PROMPT = 16, 40  # tokens of a block, blocks of a prompt


@st.composite
def fleets(draw: st.DrawFn) -> list[Candidate]:
    """Places of one pool, more and less loaded, some of them alike, full or draining."""
    speeds = draw(paces)
    kinds = [
        candidate(
            "",
            limits=PlaceLimits(draw(st.integers(0, 2))),
            block_size=BLOCK,
            total_blocks=draw(st.integers(PROMPT, 10 * PROMPT)),
            max_running=draw(st.integers(1, 4)),
            speeds=speeds,
            used_blocks=draw(st.integers(0, 10 * PROMPT)),
            draining=draw(st.booleans()) and draw(st.booleans()),
            requests=draw(st.integers(0, 5)),
            blocks=draw(st.integers(0, 5 * PROMPT)),
            tokens=draw(st.integers(0, 10_000)),
            waiting=1,
            since=draw(st.floats(-10, 0)),
        )
        for _ in range(draw(st.integers(1, 6)))
    ]
    picks = [draw(st.sampled_from(kinds)) for _ in range(draw(st.integers(1, 40)))]
    return [_named(c, f"w{i}") for i, c in enumerate(picks)]


def _named(c: Candidate, name: str) -> Candidate:
    return replace(c, lease=replace(c.lease, worker=replace(c.lease.worker, id=name)))


@st.composite
def matches_of(draw: st.DrawFn, places: int) -> Matches:
    """Nested sets of places, the deepest first; and blocks that come soon."""
    index = st.integers(0, places - 1)
    depths = sorted(draw(st.sets(st.integers(1, PROMPT), max_size=4)), reverse=True)
    holders: set[int] = set()
    runs = []
    for depth in depths:
        holders |= draw(st.sets(index))
        runs.append((depth, frozenset(holders)))
    beginnings = [
        (depth, frozenset(draw(st.sets(index)))) for depth in sorted(draw(st.sets(st.integers(1, PROMPT), max_size=3)))
    ]
    coming = draw(st.dictionaries(index, st.integers(1, PROMPT), max_size=3))
    return Matches(runs, coming, beginnings=beginnings[::-1])


@given(st.data(), fleets(), st.sampled_from([0.0, 1.0, 3.0]), st.sampled_from([None, "session"]), st.integers(0, 9))
def test_it_has_a_place_as_cheap_as_the_cheapest_of_all_through_a_whole_round(
    data: st.DataObject, places: list[Candidate], weight: float, session: str | None, seed: int
) -> None:
    """A session's own place is in it, if it is free. A placement makes its place's line longer for later requests."""
    rules, rng = Routing(prefill_weight=weight), Random(seed)
    allowed_indices = [i for i, c in enumerate(places) if can_serve(c)]
    if not allowed_indices:
        return
    fleet, homes = Fleet.of(places), dict[str, list[int]]()
    lines = Lines(places, PoolSpeeds.of([c.lease for c in places]), rng)
    now = 0.0
    for _ in range(5):
        ask = Ask(data.draw(st.integers(1, PROMPT * BLOCK)), 64, data.draw(st.integers(1, 2)), session, now=now)
        matches = data.draw(matches_of(len(places)))
        free = [matches.option(i, places[i]) for i in allowed_indices if not is_full(places[i])]
        own = home(session, places, homes, anything) if session else None
        options = shortlist(ask, places, lines, matches, fleet, weight, anything, [] if own is None else [own])
        if not free:
            assert options == []
            with pytest.raises((NoWorker, Saturated)):
                place(ask, options, rules, rng, fleet=fleet)
            return
        least = min(kv_cost(ask, o, fleet, weight).total for o in free)
        assert min(kv_cost(ask, o, fleet, weight).total for o in options) == least
        assert all(o in free for o in options)
        if own is not None:
            assert places[own] == max((o.candidate for o in free), key=lambda c: affinity("session", c))
        to = place(ask, options, rules, rng, fleet=fleet).placement
        place_index = int(to.worker.removeprefix("w"))
        places[place_index] = loaded(places[place_index], to)
        if data.draw(st.booleans()):  # the next round begins
            now += data.draw(st.floats(0, 5))
            lines.change(place_index, places[place_index])


def anything(_: Candidate) -> bool:
    return True


def chosen(places: list[Candidate], matches: Matches, tokens: int, seed: int) -> list[Option]:
    lines = Lines(places, PoolSpeeds.of([c.lease for c in places]), Random(seed))
    return shortlist(Ask(tokens, 64), places, lines, matches, Fleet.of(places), 1.0, anything)


def test_few_of_many_places_are_looked_at() -> None:
    """All of them have the beginning of the prompt, and one has all of it."""
    places = [candidate(f"w{i}", block_size=BLOCK, total_blocks=10_000, requests=i % 7) for i in range(1000)]
    matches = Matches([(PROMPT, frozenset([500])), (20, frozenset(range(1000)))])
    assert len(chosen(places, matches, PROMPT * BLOCK + 1, 1)) < 10


def test_a_worker_of_another_block_size_hides_no_cheap_place() -> None:
    """Such a worker exists while a pool's workers are replaced: the first place's blocks are small, and not indexed."""
    fast = {"total_blocks": 100_000, "max_running": 8, "speeds": Speeds(prefill_tokens_per_s=2500.0)}
    busy = fast | {"waiting": 1, "requests": 1}
    places = [
        candidate("odd", block_size=BLOCK // 4, tokens=12_500, **busy),
        *[candidate(f"deep{i}", block_size=BLOCK, tokens=7_500, **busy) for i in range(10)],
        *[candidate(f"near{i}", block_size=BLOCK, **fast) for i in range(20)],
    ]
    deep = frozenset(range(1, 11))
    matches = Matches([(1000, deep), (900, deep | frozenset(range(11, 21)))])
    ask, fleet = Ask(1000 * BLOCK, 64), Fleet.of(places)
    options = chosen(places, matches, 1000 * BLOCK, 1)
    least = min(kv_cost(ask, matches.option(i, c), fleet, 1.0).total for i, c in enumerate(places))
    assert min(kv_cost(ask, option, fleet, 1.0).total for option in options) == least


def test_equal_places_take_turns() -> None:
    """Replicas that see the same idle fleet at the same moment don't all choose the same worker."""
    places = [candidate(f"w{i}", block_size=BLOCK, total_blocks=10_000) for i in range(100)]
    first = {chosen(places, Matches(), 64, seed)[0].candidate.lease.worker.id for seed in range(50)}
    assert len(first) > 20
