"""Filter → score → pick. Pure: the same data and the same random state give the same placement."""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from app.errors import NoWorker, Saturated
from app.pools.schema import Policy, Routing
from app.routing.candidates import ALL, NOT_TIERED, Ask, Candidate, Decision, Option, Placement, PlacementCost, Room
from app.routing.cost import Fleet, held_blocks, kv_cost, missing_blocks, new_blocks, pull_cost, uncached_tokens
from app.routing.preemptible import behind_all, has_slack

Part = Literal["all", "prefill", "decode"]

_KEPT = 4  # at most 1/4 of the seats is kept free
_REACH_S = 0.02  # from a request's end until the next one is on the engine, about


def place(
    ask: Ask,
    options: Sequence[Option],
    rules: Routing,
    rng: Random,
    turn: int = 0,
    *,
    part: Part = "all",
    fleet: Fleet | None = None,
) -> Decision:
    """The place for one request or one stage of it, and what to reserve there. `turn` counts up, for `round_robin`.

    `fleet`: the speeds of all places, where the options are a shortlist of them.

    Raises: NoWorker when no place can serve it, Saturated when all that can are full.
    """
    able, free, can = list[Option](), list[Option](), can_prefill if part == "prefill" else can_serve
    for o in options:
        if not can(o.candidate) or (part == "decode" and not o.candidate.lease.worker.block_bytes):
            continue
        able.append(o)
        if not ask.aside:
            if not is_full(o.candidate, ask.room):
                free.append(o)
        elif has_slack(ask, o):
            free.append(replace(o, candidate=behind_all(o.candidate)))
    if not able:
        raise NoWorker("No live worker serves this model. It may be starting: try again.")
    if not free:
        raise Saturated
    if rules.policy == "kv":
        fleet = fleet or Fleet.of([o.candidate for o in able])
        if part == "decode":
            scores = [(o, pull_cost(ask, o, fleet)) for o in free]
        else:
            scores = [(o, kv_cost(ask, o, fleet, rules.prefill_weight)) for o in free]
    else:
        scores = _SCORES[rules.policy](free, rng, turn)
    best = pick(scores, rules, ask.session, rng)
    return Decision(placement(ask, best, part), scores, rules.policy)


def placement(ask: Ask, best: Option, part: Part) -> Placement:
    """The placement of a request, or of a stage of it: what it takes there."""
    lease = best.candidate.lease
    blocks = missing_blocks(ask, best) if part == "prefill" else new_blocks(ask, best)
    to_compute, to_pull, tiers = 0, 0, NOT_TIERED
    if part == "decode":
        to_pull = missing_blocks(ask, best)
    else:
        to_compute = uncached_tokens(ask, best)
        if best.tiered is not NOT_TIERED and best.loads:
            tiers = best.tiered
    return Placement(
        lease.worker.pool,
        lease.worker.id,
        best.candidate.rank,
        blocks=blocks,
        tokens=to_compute,
        cached=best.cached,
        pulls=to_pull,
        tiered=tiers,
    )


def loaded(c: Candidate, to: Placement, *, aside: bool = False) -> Candidate:
    """The place with the placement reserved, for the next decision of the same round."""
    if aside:
        return replace(c, aside=c.aside + 1, aside_blocks=c.aside_blocks + to.blocks)
    return replace(
        c,
        requests=c.requests + 1,
        blocks=c.blocks + to.blocks,
        tokens=c.tokens + to.tokens,
        waiting=c.waiting + 1,
        pulls=c.pulls + to.pulls,
    )


def can_serve(c: Candidate) -> bool:
    return not c.lease.draining and c.lease.worker.role in ("both", "decode")


def can_prefill(c: Candidate) -> bool:
    return not c.lease.draining and c.lease.worker.role == "prefill" and c.lease.worker.block_bytes > 0


def can_lend(c: Candidate) -> bool:
    """Whether it gives the KV of a prompt to another worker of its pool."""
    return not c.lease.draining and c.lease.worker.peers and c.lease.worker.block_bytes > 0


def is_full(c: Candidate, room: Room = ALL) -> bool:
    """Whether it is full, by any of its limits, for a request that may use so much of it."""
    limits, lease = c.limits, c.lease
    if c.requests >= lease.worker.max_running + (limits.max_queued if room.queue else _beyond_seats(c, room)):
        return True
    if limits.active_blocks is not None and held_blocks(c) >= limits.active_blocks * lease.worker.total_blocks:
        return True
    return limits.queued_tokens is not None and c.tokens >= limits.queued_tokens


def _beyond_seats(c: Candidate, room: Room) -> int:
    """Number of requests beyond its seats that it gets where tenants share it; below 0: seats that are kept.

    Some may queue where answers are short, so that no seat is empty until the next request comes.
    """
    seats, request_s = c.lease.worker.max_running, c.lease.speeds.request_s
    queue_length = min(c.limits.max_queued, int(seats * _REACH_S / request_s)) if request_s else 0
    return queue_length - min(room.kept, seats // _KEPT)


def pick(scores: Sequence[tuple[Option, PlacementCost]], rules: Routing, session: str | None, rng: Random) -> Option:
    """The cheapest option, at random among equals; a session's own place, if that costs little more."""
    if len(scores) == 1:
        return scores[0][0]
    costs = [cost.total for _, cost in scores]
    low, high = min(costs), max(costs)
    if session is not None:
        home, cost = max(scores, key=lambda s: affinity(session, s[0].candidate))
        if cost.total <= low + rules.affinity_s:
            return home
    spread = (high - low) * rules.temperature
    if spread > 0:
        weights = [math.exp((low - cost) / spread) for cost in costs]
        return rng.choices([o for o, _ in scores], weights)[0]
    return rng.choice([o for o, cost in scores if cost.total == low])


def affinity(session: str, c: Candidate) -> int:
    """Rendezvous hashing: when a worker comes or goes, only its own sessions move."""
    return xxh3_64_intdigest(f"{session}\0{c.lease.worker.id}\0{c.rank}".encode())


Scores = list[tuple[Option, PlacementCost]]


def _least_loaded(free: Sequence[Option], _rng: Random, _turn: int) -> Scores:
    return [(o, PlacementCost(o.candidate.requests / o.candidate.lease.worker.max_running)) for o in free]


def _round_robin(free: Sequence[Option], _rng: Random, turn: int) -> Scores:
    order = sorted(free, key=lambda o: (o.candidate.lease.worker.id, o.candidate.rank))
    return [(o, PlacementCost((i - turn) % len(order))) for i, o in enumerate(order)]


def _random(free: Sequence[Option], _rng: Random, _turn: int) -> Scores:
    return [(o, PlacementCost(0.0)) for o in free]


def _power_of_two(free: Sequence[Option], rng: Random, turn: int) -> Scores:
    return _least_loaded(rng.sample(free, min(2, len(free))), rng, turn)


# The policies that ignore prefixes; their costs are in their own units.
_SCORES: dict[Policy, Callable[[Sequence[Option], Random, int], Scores]] = {
    "least_loaded": _least_loaded,
    "round_robin": _round_robin,
    "random": _random,
    "power_of_two": _power_of_two,
}
