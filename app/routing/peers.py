"""Whether a worker takes a prompt's KV from another one of its pool, instead of computing it or waiting. Pure."""

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from app.errors import NoWorker, Saturated
from app.pools.schema import Routing
from app.routing.candidates import Ask, Decision, Option
from app.routing.cost import Fleet, kv_cost, lend_cost, pull_cost
from app.routing.disagg import HOP_S, SplitPlacement, decoding, option_of
from app.routing.policy import can_lend, can_serve, place, placement


def place_with_peer(
    ask: Ask, here: Decision, options: Sequence[Option], rules: Routing, rng: Random
) -> SplitPlacement | None:
    """A worker that has most of the prompt's KV, and one that takes it and decodes; None: `here` is as good.

    `options`: of the pool of `here`.
    """
    lenders = [o for o in options if can_lend(o.candidate) and o.cached]
    if not lenders:
        return None
    fleet, bare = Fleet.of([o.candidate for o in options]), replace(ask, max_tokens=0)
    costs = [(o, lend_cost(bare, o, fleet)) for o in lenders]
    lender, lends = min(costs, key=lambda option: option[1].total)
    takers = [o for o in options if can_lend(o.candidate) and _gains(lender, o)]
    try:
        to = place(ask, takers, rules, rng, part="decode")
    except (NoWorker, Saturated):
        return None
    taker = option_of(to.placement, takers)
    home = option_of(here.placement, [o for o in options if can_serve(o.candidate)])
    stays, pull = kv_cost(ask, home, fleet, 1.0), pull_cost(ask, taker, fleet)
    if lends.total + HOP_S + pull.total >= stays.total + stays.prefill * decoding(home.candidate):
        return None
    return SplitPlacement(Decision(replace(placement(bare, lender, "prefill"), lends=True), costs), to)


def _gains(lender: Option, taker: Option) -> bool:
    """Whether it is another worker with much less of the prompt's KV."""
    lends, takes = lender.candidate.lease.worker, taker.candidate.lease.worker
    tokens = (lender.cached - taker.cached) * lends.block_size
    return lends.id != takes.id and tokens >= max(1, lender.candidate.limits.remote_tokens)
