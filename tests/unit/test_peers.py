"""Whether a worker takes a prompt's KV from another one of its pool: the promises of that decision."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ids import PoolId, WorkerId
from app.messages import Lease, Speeds, Worker
from app.pools import Routing
from app.routing.candidates import Ask, Candidate, Limits, Option
from app.routing.cost import Fleet, kv_cost
from app.routing.disagg import SplitPlacement
from app.routing.peers import place_with_peer
from app.routing.policy import place
from tests.leases import changed

BLOCK, SEATS = 16, 4
ASK = Ask(prompt_tokens=4000, max_tokens=100)
FULL = {"requests": SEATS + 4, "speeds": Speeds(2_000.0, request_s=4.0)}  # a seat becomes free each half second


def option(name: str, cached: int = 0, **changes: Any) -> Option:
    on_candidate = {k: v for k, v in changes.items() if k in Candidate.__struct_fields__}
    on_lease = {k: v for k, v in changes.items() if k not in on_candidate}
    worker = Worker(
        WorkerId(name), PoolId("pool"), "both", "host", 1, BLOCK, 4000, SEATS, 8192, block_bytes=2_000_000, peers=True
    )
    lease = changed(Lease(worker, speeds=Speeds(2_000.0, request_s=4.0)), **on_lease)
    return Option(Candidate(lease, Limits(64, remote_tokens=128), **on_candidate), cached, cached)


def decide(*options: Option, ask: Ask = ASK) -> SplitPlacement | None:
    here = place(ask, options, Routing(), Random(0))
    return place_with_peer(ask, here, options, Routing(), Random(0))


def test_a_free_worker_takes_the_kv_of_a_busy_one() -> None:
    pair = decide(option("busy", cached=245, **FULL), option("free"))
    assert pair is not None
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


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 12), st.integers(0, 4000)), min_size=2, max_size=5))
def test_a_pair_is_two_workers_and_takes_less_time_than_the_place_alone(places: list[tuple[int, int, int]]) -> None:
    options = [
        option(f"w{i}", cached, requests=requests, tokens=tokens if requests else 0, waiting=min(1, requests))
        for i, (cached, requests, tokens) in enumerate(places)
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
    busiest = max(requests for _cached, requests, _tokens in places)
    assert lends.total < alone.total + alone.prefill * busiest
