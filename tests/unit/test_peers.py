"""Whether a worker takes a prompt's KV from another one of its pool: the promises of that decision."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.dispatch.inflight import InFlight
from app.dispatch.placing.placement_commands import placement
from app.dispatch.placing.placement_round import PlacementRound
from app.keys import Keys
from app.kv.groups import grids_of
from app.messages.job import PartialOutput, Sampling
from app.messages.lease import Speeds
from app.pools.schema import Routing
from app.routing.candidates import Ask, Matches, Option, PlaceLimits
from app.routing.cost import Fleet, kv_cost
from app.routing.disagg import SplitPlacement
from app.routing.peers import place_with_peer
from app.routing.policy import place
from tests.jobs import POOL, in_flight, job, placing
from tests.leases import candidate
from tests.models import mock
from tests.present import present

BLOCK, SEATS = 16, 4
ASK = Ask(prompt_tokens=4000, max_tokens=100)
FULL = {"requests": SEATS + 4, "speeds": Speeds(2_000.0, request_s=4.0)}  # a seat becomes free each half second


def option(name: str, cached: int = 0, **changes: Any) -> Option:
    fields = {"total_blocks": 4000, "max_running": SEATS, "block_bytes": 2_000_000, "peers": True} | changes
    fields = {"speeds": Speeds(2_000.0, request_s=4.0)} | fields
    return Option(candidate(name, PlaceLimits(64, remote_tokens=128), **fields), cached, cached)


def decide(*options: Option, ask: Ask = ASK) -> SplitPlacement | None:
    here = place(ask, options, Routing(), Random(0))
    return place_with_peer(ask, here, options, Routing(), Random(0))


def test_a_free_worker_takes_the_kv_of_a_busy_one() -> None:
    pair = present(decide(option("busy", cached=245, **FULL), option("free")))
    lends, takes = pair.prefill.placement, pair.decode.placement
    assert (lends.worker, lends.tokens, lends.blocks, lends.pulls) == ("busy", 80, 5, 0)
    assert (takes.worker, takes.tokens, takes.pulls) == ("free", 0, 250)


@pytest.mark.parametrize(
    ("busy", "free", "why"),
    [
        ({"cached": 245}, {}, "the one with the KV has a free seat"),
        ({"cached": 6, **FULL}, {}, "too little of the prompt is there"),
        ({"cached": 245, **FULL}, {"cached": 240}, "the free one has nearly as much"),
        ({"cached": 245, **FULL}, {"peers": False}, "the free one takes no KV"),
        ({"cached": 245, **FULL, "peers": False}, {}, "the busy one gives no KV"),
        ({"cached": 245, **FULL, "draining": True}, {}, "the busy one ends"),
        ({"cached": 245, **FULL}, {"requests": SEATS + 64}, "no other worker has room"),
        ({"cached": 245, **FULL}, {"speeds": Speeds(2_000.0, pulled_bytes_per_s=1e7)}, "a copy takes 50 seconds"),
        ({"cached": 245, **FULL}, {"speeds": Speeds(1e6)}, "computing it takes no time"),
        ({"cached": 245, **FULL, "tokens": 40_000, "waiting": 1}, {}, "a prompt of 20 seconds is being computed there"),
    ],
)
def test_otherwise_one_worker_has_all_of_the_request(busy: dict[str, Any], free: dict[str, Any], why: str) -> None:
    assert decide(option("busy", **busy), option("free", **free)) is None, why


def test_two_ranks_of_one_worker_are_no_pair() -> None:
    assert decide(option("w", cached=245, **FULL), option("w", rank=1)) is None


POOLS = {POOL: mock(block_size=BLOCK, peers=True)}


def round_of(count: int, **fields: Any) -> tuple[PlacementRound, list[InFlight]]:
    """Requests with one prompt, of which the busy worker has nearly all."""
    fields = {"sampling": Sampling(max_tokens=100)} | fields
    requests = [in_flight(job([7] * ASK.prompt_tokens, f"r{i}", **fields)) for i in range(count)]
    places = [option("busy", **FULL).candidate, option("free", aside_most=2).candidate]
    round_ = placing(requests, POOLS, {POOL: places})
    matches = [Matches([(245, frozenset([0]))]) for _ in requests]
    round_.views = {POOL: replace(round_.views[POOL], matches=matches)}
    return round_, requests


def test_a_lent_prompt_is_no_load_where_it_is_lent_and_its_blocks_are_not_coming_where_they_go() -> None:
    """The next request of the round sees the same busy worker, and no block on the free one."""
    round_, requests = round_of(2)
    for number, inflight in enumerate(requests):
        stages = round_.decide(inflight, Random(0), 0)
        assert {kind: it.placement.worker for kind, it in stages.items()} == {"prefill": "busy", "decode": "free"}
        assert stages["prefill"].placement.lends
        busy, free = round_.views[POOL].candidates
        assert (busy.requests, busy.aside) == (FULL["requests"], number + 1)
        assert (free.requests, free.aside) == (number + 1, 0)
        assert 1 not in round_.matches(requests[1], POOL).coming


def test_a_lent_prompt_is_reserved_apart_from_the_load() -> None:
    """An aside request is, too; the one at the worker that decodes isn't."""
    round_, (inflight,) = round_of(1)
    places = round_.assign(inflight, Random(0), 0)
    command = placement(Keys("test"), grids_of(POOLS), inflight, places, round_.lease(places[0]).worker).command
    assert [command[command.index(name) + 1] for name in ("busy", "free")] == ["0a", 0]


@pytest.mark.parametrize("fields", [{"aside": True}, {"begun": [PartialOutput([3], 1)]}])
def test_what_gives_way_or_goes_on_has_one_worker(fields: dict[str, Any]) -> None:
    round_, (inflight,) = round_of(1, **fields)
    assert list(round_.decide(inflight, Random(0), 0)) == ["decode"]


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 12), st.integers(0, 4000)), min_size=2, max_size=5))
def test_a_pair_is_two_workers_and_takes_less_time_than_the_place_alone(places: list[tuple[int, int, int]]) -> None:
    options = [
        option(f"w{i}", cached_blocks, requests=requests, tokens=tokens if requests else 0, waiting=min(1, requests))
        for i, (cached_blocks, requests, tokens) in enumerate(places)
    ]
    here = place(ASK, options, Routing(), Random(0))
    pair = place_with_peer(ASK, here, options, Routing(), Random(0))
    if pair is None:
        return
    assert pair.prefill.placement.worker != pair.decode.placement.worker
    assert pair.prefill.placement.cached > pair.decode.placement.cached
    fleet = Fleet.of([o.candidate for o in options])
    alone = next(kv_cost(ASK, o, fleet, 1.0) for o in options if o.candidate.lease.worker.id == here.placement.worker)
    (lends,) = (c for o, c in pair.prefill.scored if o.candidate.lease.worker.id == pair.prefill.placement.worker)
    busiest = max(requests for _cached_blocks, requests, _tokens in places)
    assert lends.total < alone.total + alone.prefill * busiest
