"""The `kv` policy's cost of a place, in seconds: README.md derives it."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from app.ids import PoolId
from app.messages.lease import Lease
from app.routing.candidates import NOT_TIERED, Ask, Candidate, Option, PlacementCost
from app.routing.tier_cost import load_s

EXPECTED_ANSWER = 256  # the most tokens of an answer that blocks are reserved for: most are shorter than `max_tokens`
TOKENS_PER_S = 10_000.0  # assumed for a pool that has computed no prompt yet
_BUSY_MOST = 0.9  # beyond it, the estimate of an engine's idle share is noise
# The share of later requests that a longer queue delays: the others are placed elsewhere.
_DELAYED_SHARE = 0.25
# The chance that a prompt's beginning which another one had, too, comes again before it is evicted.
_COMES_AGAIN = 0.25
_STEP_S = 0.02  # by which a full engine's step is longer than an empty one's
_PULLED_BYTES_PER_S = 3e9  # assumed for a pool that has pulled no KV yet: a copy within one host


class PoolSpeeds(Struct, frozen=True):
    """The speeds of a pool's places together.

    The places are identical, so their mean predicts each better than its own last minute.
    """

    places: int
    prefill_tokens_per_s: float  # the mean; as assumed if none has computed a prompt yet
    prefills_per_s: float  # the sum, here and below
    busy: float
    pulled_bytes_per_s: float = _PULLED_BYTES_PER_S  # the mean; as assumed if none has pulled KV yet

    @classmethod
    def of(cls, leases: Sequence[Lease], guess: float = TOKENS_PER_S) -> "PoolSpeeds":
        speeds = [lease.speeds for lease in leases]
        prefill_speeds = [s.prefill_tokens_per_s for s in speeds if s.prefill_tokens_per_s > 0]
        pull_speeds = [s.pulled_bytes_per_s for s in speeds if s.pulled_bytes_per_s > 0]
        return cls(
            len(speeds),
            _mean(prefill_speeds, guess),
            sum(s.prefills_per_s for s in speeds),
            sum(s.busy for s in speeds),
            _mean(pull_speeds, _PULLED_BYTES_PER_S),
        )


class Fleet(Struct, frozen=True):
    """The speeds that the places have in common."""

    tokens_per_s: dict[PoolId, float]
    delay_rate: float  # 1/s: requests delayed by each second that a queue gets longer
    pulled_bytes_per_s: dict[PoolId, float]

    @classmethod
    def of(cls, places: Sequence[Candidate], others: Sequence[Candidate] = ()) -> "Fleet":
        """`others`: their speeds are assumed for a pool that has computed no prompt yet."""
        pools: dict[PoolId, list[Lease]] = {}
        for c in places:
            pools.setdefault(c.lease.worker.pool, []).append(c.lease)
        guess = _mean([s for c in others if (s := c.lease.speeds.prefill_tokens_per_s) > 0], TOKENS_PER_S)
        return cls.together({pool: PoolSpeeds.of(leases, guess) for pool, leases in pools.items()})

    @classmethod
    def together(cls, pools: Mapping[PoolId, PoolSpeeds]) -> "Fleet":
        count, per_s, busy = 0, 0.0, 0.0
        tokens_per_s, pulled_bytes_per_s = {}, {}
        for pool, speeds in pools.items():
            count, per_s, busy = count + speeds.places, per_s + speeds.prefills_per_s, busy + speeds.busy
            tokens_per_s[pool], pulled_bytes_per_s[pool] = speeds.prefill_tokens_per_s, speeds.pulled_bytes_per_s
        rate = _DELAYED_SHARE * per_s / count / (1 - min(busy / count, _BUSY_MOST))
        return cls(tokens_per_s, rate, pulled_bytes_per_s)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def kv_cost(ask: Ask, option: Option, fleet: Fleet, weight: float) -> PlacementCost:
    """Seconds until the first token, and the delay of other requests in seconds."""
    speed = fleet.tokens_per_s[option.candidate.lease.worker.pool]
    wait = line(option.candidate, fleet, ask.now) + _wait_for_blocks(ask, option) + option.loading_s
    if option.tiered is not NOT_TIERED:
        wait += load_s(option)
    prefill = uncached_tokens(ask, option) / speed
    there = max(option.cached, option.coming)
    saved_s = _saved_s(ask, option, there, speed) if option.beginning > there else 0.0
    return PlacementCost(wait, prefill, others_cost(fleet, weight, wait, prefill), saved_s)


def _saved_s(ask: Ask, option: Option, there: int, tokens_per_s: float) -> float:
    """Seconds that later prompts with the same beginning are spared, if this one is computed here.

    Where layers differ, an engine keeps the point at which two prompts part when it computes the second of them.
    `there`: leading blocks that need not be computed; the beginning has more.
    """
    return _COMES_AGAIN * (_without(ask, option, there) - _without(ask, option, option.beginning)) / tokens_per_s


def others_cost(fleet: Fleet, weight: float, wait: float, prefill: float) -> float:
    """Seconds by which a prefill delays other requests."""
    return weight * fleet.delay_rate * prefill * (wait + prefill / 2)


def line(c: Candidate, fleet: Fleet, now: float) -> float:
    """The part of the wait that is the same for all prompts: seconds. More load never lowers it."""
    begun_s = max(0.0, now - c.since) if c.since else 0.0
    return max(0.0, c.tokens / fleet.tokens_per_s[c.lease.worker.pool] - begun_s) + load_part(c)


def load_part(c: Candidate) -> float:
    """Seconds by which a fuller engine takes longer, and until it has a free seat.

    By Little's law max_running / request_s requests end a second, and as many have to as there are too many.
    """
    most = c.lease.worker.max_running
    wait = max(0, c.requests + 1 - most) / most * c.lease.speeds.request_s
    return _STEP_S * load(c) + wait


def pull_cost(ask: Ask, option: Option, fleet: Fleet) -> PlacementCost:
    """Seconds until a prompt's KV has been pulled from another worker, behind earlier pulls."""
    c = option.candidate
    block_s = c.lease.worker.block_bytes / fleet.pulled_bytes_per_s[c.lease.worker.pool]
    wait = _wait_for_blocks(ask, option) + load_part(c) + c.pulls * block_s
    return PlacementCost(wait, missing_blocks(ask, option) * block_s)


def lend_cost(ask: Ask, option: Option, fleet: Fleet) -> PlacementCost:
    """Seconds until a prompt's last tokens are computed where the others are cached, and the delay of requests there.

    It is the first of the requests that wait there, so it waits for one prompt, and for one seat.
    """
    c = option.candidate
    speed = fleet.tokens_per_s[c.lease.worker.pool]
    prompt_s = c.tokens / c.waiting / speed if c.waiting else 0.0
    most = c.lease.worker.max_running
    seat = c.lease.speeds.request_s / most if c.requests >= most else 0.0
    prefill = uncached_tokens(ask, option) / speed
    wait = _wait_for_blocks(ask, option) + prompt_s + seat + _STEP_S * load(c)
    return PlacementCost(wait, prefill, prefill * c.requests)


def missing_blocks(ask: Ask, option: Option) -> int:
    """Blocks of the prompt that the place has not cached; at least one."""
    tokens = _without(ask, option, max(option.cached, option.coming))
    return -(-tokens // option.candidate.lease.worker.block_size)


def uncached_tokens(ask: Ask, option: Option) -> int:
    """Prompt tokens that the place has to compute; the last token always."""
    return _without(ask, option, max(option.cached + option.tiered.host + option.tiered.store, option.coming))


def _without(ask: Ask, option: Option, blocks: int) -> int:
    """The prompt's tokens without so many leading blocks; the last token is always among them."""
    return ask.prompt_tokens - min(blocks * option.candidate.lease.worker.block_size, ask.prompt_tokens - 1)


def new_blocks(ask: Ask, option: Option) -> int:
    """KV blocks that the request needs there: for the prompt's uncached part, and the expected answers."""
    if not ask.holds:
        return 0
    new = _without(ask, option, max(option.cached, option.coming))  # what is loaded needs room, too
    tokens = new + ask.n * min(ask.max_tokens, EXPECTED_ANSWER)
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

    By Little's law they free occupied_blocks / request_s blocks a second.
    """
    c = option.candidate
    occupied_blocks = held_blocks(c)
    missing = occupied_blocks + new_blocks(ask, option) - c.lease.worker.total_blocks
    return missing / occupied_blocks * c.lease.speeds.request_s if missing > 0 and occupied_blocks > 0 else 0.0
