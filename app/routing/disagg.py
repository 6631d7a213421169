"""Whether a prefill worker computes the prompt, or the worker that decodes. Pure."""

from collections.abc import Sequence
from random import Random

from msgspec import Struct

from app.errors import NoWorker, Saturated
from app.messages.lease import Lease
from app.pools.schema import Routing
from app.routing.candidates import Ask, Candidate, Decision, Option, Placement
from app.routing.cost import Fleet, kv_cost, pull_cost
from app.routing.policy import can_serve, place

# From the end of a prefill to the beginning of the decode task, transfer excluded: ops/bench/RESULTS.md.
HOP_S = 0.005


class SplitPlacement(Struct, frozen=True):
    """Two placements for one request."""

    prefill: Decision
    decode: Decision


def place_split(
    ask: Ask,
    here: Decision,
    prefills: Sequence[Option],
    decodes: Sequence[Option],
    rules: tuple[Routing, Routing],
    rng: Random,
    turn: int = 0,
) -> SplitPlacement | None:
    """Two workers, if that is better than the one of `here`, else None; `rules`: of prefill and of decode.

    Also None when no prefill worker has room: the decode worker then computes the prompt.
    """
    prefills = [o for o in prefills if here.placement.tokens >= o.candidate.limits.remote_tokens]
    if not prefills:
        return None
    try:
        far = place(ask, prefills, rules[0], rng, turn, part="prefill")
        to = place(ask, decodes, rules[1], rng, turn, part="decode")
    except (NoWorker, Saturated):
        return None
    able = [o for o in decodes if can_serve(o.candidate)]
    home, target = option_of(here.placement, able), option_of(to.placement, able)
    return (
        SplitPlacement(far, to)
        if _is_better(ask, home, option_of(far.placement, prefills), target, prefills, decodes=able)
        else None
    )


def _is_better(
    ask: Ask, home: Option, far: Option, target: Option, prefills: Sequence[Option], decodes: Sequence[Option]
) -> bool:
    """Whether two workers are better than one.

    Decided by the pool's `remote_wait_s` if set, else by the total delay of all requests, in seconds.
    """
    longest = far.candidate.limits.remote_wait_s
    sides = [o.candidate for o in prefills], [o.candidate for o in decodes]
    there = kv_cost(ask, far, Fleet.of(*sides), 1.0)
    if longest is not None:
        return there.wait <= longest
    fleet = Fleet.of(*sides[::-1])
    pull, here = pull_cost(ask, target, fleet), kv_cost(ask, home, fleet, 1.0)
    return there.total + HOP_S + pull.total <= here.total + here.prefill * decoding(home.candidate)


def decoding(c: Candidate) -> int:
    """Requests whose next token is delayed by a prefill there: those that have their first token."""
    return max(0, c.requests - c.waiting)


def option_of(to: Placement, options: Sequence[Option]) -> Option:
    return next(o for o in options if (o.candidate.lease.worker.id, o.candidate.rank) == (to.worker, to.rank))


def still_fits(lease: Lease | None, blocks: int) -> bool:
    """Whether the decode worker can still take a prompt of so many blocks, now that it is computed."""
    if lease is None or lease.draining:
        return False
    # Aside requests give up their blocks when these are needed.
    return lease.load.aside > 0 or lease.load.used_blocks + blocks <= lease.worker.total_blocks * lease.worker.ranks
