"""Filter → score → pick. Pure: the same data and the same random state give the same placement."""

from collections.abc import Sequence
from random import Random

from app.errors import NoWorker, Saturated
from app.routing.fleet import Ask, Candidate, Limits, Placement

# An answer may be much shorter than `max_tokens` allows, which defaults to all that the context has left.
# Blocks for this many tokens of it are reserved at most.
EXPECTED_ANSWER = 256


def place(ask: Ask, fleet: Sequence[Candidate], limits: Limits, rng: Random) -> Placement:
    """The worker for one request, and what to reserve there.

    Raises: NoWorker when none may take it, Saturated when all that may are full.
    """
    able = [c for c in fleet if can_serve(c)]
    if not able:
        raise NoWorker("No live worker serves this model. It may be starting: try again.")
    free = [c for c in able if not is_full(c, limits)]
    if not free:
        raise Saturated(retry_after_s=limits.retry_after_s)
    best = pick([(idleness(c), c) for c in free], rng).lease
    return Placement(best.pool, best.worker, blocks_for(ask, best.block_size), ask.prompt_tokens)


def reserve(fleet: Sequence[Candidate], to: Placement) -> list[Candidate]:
    """The fleet as it is with the placement on it, for the next decision of the same round."""
    return [_loaded(c, to) if c.lease.worker == to.worker else c for c in fleet]


def _loaded(c: Candidate, to: Placement) -> Candidate:
    return Candidate(c.lease, c.requests + 1, c.blocks + to.blocks, c.tokens + to.tokens)


def can_serve(c: Candidate) -> bool:
    return not c.lease.draining and c.lease.role in ("both", "decode")


def is_full(c: Candidate, limits: Limits) -> bool:
    return c.requests >= c.lease.max_running + limits.max_queued


def idleness(c: Candidate) -> float:
    """In (0, 1]: 1 without load, 1/2 when what is reserved fills the engine once."""
    load = max(c.requests / c.lease.max_running, c.blocks / max(1, c.lease.total_blocks))
    return 1 / (1 + load)


def pick(scored: Sequence[tuple[float, Candidate]], rng: Random) -> Candidate:
    """One of the best, at random, so that equal workers share evenly."""
    top = max(score for score, _ in scored)
    return rng.choice([c for score, c in scored if score == top])


def blocks_for(ask: Ask, block_size: int) -> int:
    return -(-(ask.prompt_tokens + ask.n * min(ask.max_tokens, EXPECTED_ANSWER)) // block_size)
