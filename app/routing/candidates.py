"""What a decision is made from, and what it is."""

from msgspec import Struct

from app.ids import PoolId, WorkerId
from app.messages import Lease


class Limits(Struct, frozen=True):
    """From where on a place gets no more. The fields can be changed at run time, in `limits:<pool>`."""

    max_queued: int  # requests beyond `max_running`
    active_blocks: float | None = None  # share of its KV blocks that requests hold
    queued_tokens: int | None = None  # prompt tokens that wait for their prefill
    # Of a pool that only prefills; `pools.Disagg` says what they mean.
    remote_tokens: int = 128
    remote_wait_s: float | None = None


class Candidate(Struct, frozen=True):
    """One place a request can go to: a worker, or one data-parallel rank of it, and what has been sent there."""

    lease: Lease
    limits: Limits
    rank: int = 0
    requests: int = 0
    blocks: int = 0  # KV blocks that these hold or will hold
    tokens: int = 0  # prompt tokens to compute, of those without a first token
    waiting: int = 0  # requests without a first token
    head_s: float = 0.0  # since the first of them began
    pulls: int = 0  # blocks to come from engines that prefill, of requests without a first token here
    # Requests that give way to others, and the blocks that they hold or will hold; not in the numbers above.
    aside: int = 0
    aside_blocks: int = 0


class Option(Struct, frozen=True):
    """A candidate in the light of one prompt."""

    candidate: Candidate
    cached: int = 0  # leading blocks of the prompt that its KV cache has
    coming: int = 0  # and with those that a request waiting there will leave in it
    loading_s: float = 0.0  # until the adapter that the request wants is loaded there


class Ask(Struct, frozen=True):
    """A request to be placed."""

    prompt_tokens: int
    max_tokens: int
    n: int = 1  # answers to the one prompt
    session: str | None = None  # requests of one session should meet the same cache
    aside: bool = False  # gives way to online requests
    holds: bool = True  # KV blocks, from its beginning to its end


class Placement(Struct, frozen=True):
    pool: PoolId
    worker: WorkerId
    rank: int
    blocks: int  # KV blocks to reserve
    tokens: int  # prompt tokens that will have to be computed
    cached: int  # blocks expected in the cache
    pulls: int = 0  # blocks to pull from where the prompt is computed; then `tokens` is 0


class Cost(Struct, frozen=True):
    """What it means to place a request here, in seconds (`kv`), or in the policy's own unit (`wait`)."""

    wait: float  # until its prefill begins
    prefill: float = 0.0  # its own
    others: float = 0.0  # by which it delays others

    @property
    def total(self) -> float:
        return self.wait + self.prefill + self.others


class Decision(Struct, frozen=True):
    placement: Placement
    scored: list[tuple[Option, Cost]]  # all that could have taken it
    policy: str = "kv"
