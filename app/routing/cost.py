"""The `kv` policy's cost of a place, in seconds: README.md derives it."""

from collections.abc import Sequence

from msgspec import Struct

from app.ids import PoolId
from app.routing.candidates import Ask, Candidate, Cost, Option

EXPECTED_ANSWER = 256  # the most tokens of an answer that blocks are reserved for: most are shorter than `max_tokens`
_TOKENS_PER_S = 10_000.0  # assumed for a pool that has computed no prompt yet
_BUSY_MOST = 0.9  # beyond it, the estimate of an engine's idle share is noise
# The share of later requests that a longer queue delays: the others are placed elsewhere.
_DELAYED_SHARE = 0.25
_STEP_S = 0.02  # by which a full engine's step is longer than an empty one's
_PULLED_BYTES_PER_S = 3e9  # assumed for a worker that has pulled no KV yet: a copy within one host


class Fleet(Struct, frozen=True):
    """The speeds that the places have in common."""

    # A pool's workers are identical: their mean predicts each one better than its own last minute does.
    tokens_per_s: dict[PoolId, float]
    delay_rate: float  # 1/s: requests delayed by each second that a queue gets longer

    @classmethod
    def of(cls, options: Sequence[Option], others: Sequence[Option] = ()) -> "Fleet":
        """`others`: their speeds are assumed for a pool that has computed no prompt yet."""
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
            _DELAYED_SHARE * per_s / (1 - min(busy, _BUSY_MOST)),
        )


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def kv_cost(ask: Ask, option: Option, fleet: Fleet, weight: float) -> Cost:
    """Seconds until the first token, and the delay of other requests in seconds."""
    c = option.candidate
    speed = fleet.tokens_per_s[c.lease.worker.pool]
    wait = max(0.0, c.tokens / speed - c.head_s) + _wait_for_blocks(ask, option) + _STEP_S * load(c) + option.loading_s
    prefill = uncached_tokens(ask, option) / speed
    return Cost(wait, prefill, weight * fleet.delay_rate * prefill * (wait + prefill / 2))


def pull_cost(ask: Ask, option: Option) -> Cost:
    """Seconds until a prompt's KV has been pulled from another worker, behind earlier pulls."""
    c = option.candidate
    speed = c.lease.speeds.pulled_bytes_per_s or _PULLED_BYTES_PER_S
    block_s = c.lease.worker.block_bytes / speed
    wait = _wait_for_blocks(ask, option) + _STEP_S * load(c) + c.pulls * block_s
    return Cost(wait, missing_blocks(ask, option) * block_s)


def missing_blocks(ask: Ask, option: Option) -> int:
    """Blocks of the prompt that the place has not cached; at least one."""
    return -(-uncached_tokens(ask, option) // option.candidate.lease.worker.block_size)


def uncached_tokens(ask: Ask, option: Option) -> int:
    """Prompt tokens that the place has to compute; the last token always."""
    cached = max(option.cached, option.coming) * option.candidate.lease.worker.block_size
    return ask.prompt_tokens - min(cached, ask.prompt_tokens - 1)


def new_blocks(ask: Ask, option: Option) -> int:
    """KV blocks that the request needs there: for the prompt's uncached part, and the expected answers."""
    if not ask.holds:
        return 0
    tokens = uncached_tokens(ask, option) + ask.n * min(ask.max_tokens, EXPECTED_ANSWER)
    return -(-tokens // option.candidate.lease.worker.block_size)


def held_blocks(c: Candidate) -> float:
    """Blocks that requests hold or have reserved, whichever is more: the worker's report comes later.

    Blocks of aside requests count as free.
    """
    return max(c.blocks, c.lease.load.used_blocks / c.lease.worker.ranks - c.aside_blocks)


def load(c: Candidate) -> float:
    """1 when the requests there fill all seats, or all blocks."""
    return max(c.requests / c.lease.worker.max_running, held_blocks(c) / max(1, c.lease.worker.total_blocks))


def _wait_for_blocks(ask: Ask, option: Option) -> float:
    """Seconds until running requests have freed the missing blocks.

    By Little's law they free held / request_s blocks a second.
    """
    c = option.candidate
    held = held_blocks(c)
    missing = held + new_blocks(ask, option) - c.lease.worker.total_blocks
    return missing / held * c.lease.speeds.request_s if missing > 0 and held > 0 else 0.0
