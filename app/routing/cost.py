"""The `kv` policy's cost of a place, in seconds: README.md derives it."""

from collections.abc import Sequence

from msgspec import Struct

from app.ids import PoolId
from app.routing.candidates import Ask, Candidate, Cost, Option

# An answer may be much shorter than `max_tokens` allows, which defaults to all that the context has left.
# Blocks for this many tokens of it are reserved at most.
EXPECTED_ANSWER = 256

_TOKENS_PER_S = 10_000.0  # of a pool that has computed no prompt yet
_BUSY_MOST = 0.9  # beyond it the estimate of what is left of an engine's time is noise
# The share of later requests that a longer queue delays: the others go where it is shorter.
_STUCK = 0.25
_STEP_S = 0.02  # by which a full engine's step is longer than an empty one's
_PULLED_BYTES_PER_S = 3e9  # of a worker that has pulled no KV yet: through one host's memory


class Fleet(Struct, frozen=True):
    """What the places have in common."""

    # The workers of a pool are identical, so that their mean says more of each than its own last minute does.
    tokens_per_s: dict[PoolId, float]
    drag: float  # 1/s: requests delayed by each second that a queue gets longer

    @classmethod
    def of(cls, options: Sequence[Option], others: Sequence[Option] = ()) -> "Fleet":
        """`others` say how fast a pool may be that has computed no prompt yet."""
        leases = [o.candidate.lease for o in options]
        per_s = sum(lease.speeds.prefills_per_s for lease in leases) / len(leases)
        busy = sum(lease.speeds.busy for lease in leases) / len(leases)
        speeds: dict[PoolId, list[float]] = {lease.worker.pool: [] for lease in leases}
        for lease in leases:
            if lease.speeds.prefill_tokens_per_s > 0:
                speeds[lease.worker.pool].append(lease.speeds.prefill_tokens_per_s)
        guess = _mean([s for o in others if (s := o.candidate.lease.speeds.prefill_tokens_per_s) > 0], _TOKENS_PER_S)
        return cls(
            {pool: _mean(measured, guess) for pool, measured in speeds.items()},
            _STUCK * per_s / (1 - min(busy, _BUSY_MOST)),
        )


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def kv_cost(ask: Ask, option: Option, fleet: Fleet, weight: float) -> Cost:
    """Seconds until the first token, and the seconds by which that delays others."""
    c = option.candidate
    speed = fleet.tokens_per_s[c.lease.worker.pool]
    wait = max(0.0, c.tokens / speed - c.head_s) + _for_room(ask, option) + _STEP_S * load(c) + option.loading_s
    prefill = uncached_tokens(ask, option) / speed
    return Cost(wait, prefill, weight * fleet.drag * prefill * (wait + prefill / 2))


def pull_cost(ask: Ask, option: Option) -> Cost:
    """Seconds until the KV of a prompt that another worker has computed is there, behind what comes there already."""
    c = option.candidate
    speed = c.lease.speeds.pulled_bytes_per_s or _PULLED_BYTES_PER_S
    a_block = c.lease.worker.block_bytes / speed
    return Cost(_for_room(ask, option) + _STEP_S * load(c) + c.pulls * a_block, missing_blocks(ask, option) * a_block)


def missing_blocks(ask: Ask, option: Option) -> int:
    """Blocks of the prompt that are not cached there; at least one."""
    return -(-uncached_tokens(ask, option) // option.candidate.lease.worker.block_size)


def uncached_tokens(ask: Ask, option: Option) -> int:
    """Prompt tokens to be computed there; the last one always is."""
    cached = max(option.cached, option.coming) * option.candidate.lease.worker.block_size
    return ask.prompt_tokens - min(cached, ask.prompt_tokens - 1)


def new_blocks(ask: Ask, option: Option) -> int:
    """KV blocks that have to be found there: for what isn't cached of the prompt, and the expected answers."""
    if not ask.holds:
        return 0
    tokens = uncached_tokens(ask, option) + ask.n * min(ask.max_tokens, EXPECTED_ANSWER)
    return -(-tokens // option.candidate.lease.worker.block_size)


def held_blocks(c: Candidate) -> float:
    """Blocks that requests hold: as the worker reports, or what was reserved, which is known at once.

    Those that aside requests hold are as good as free.
    """
    return max(c.blocks, c.lease.load.used_blocks / c.lease.worker.ranks - c.aside_blocks)


def load(c: Candidate) -> float:
    """1 when what is there fills the engine once, by seats or by blocks."""
    return max(c.requests / c.lease.worker.max_running, held_blocks(c) / max(1, c.lease.worker.total_blocks))


def _for_room(ask: Ask, option: Option) -> float:
    """Seconds until running requests have let go of the blocks that are missing.

    By Little's law they let go of held / request_s blocks a second.
    """
    c = option.candidate
    held = held_blocks(c)
    missing = held + new_blocks(ask, option) - c.lease.worker.total_blocks
    return missing / held * c.lease.speeds.request_s if missing > 0 and held > 0 else 0.0
