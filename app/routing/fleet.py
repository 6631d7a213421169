"""What a decision is made from, and what it is."""

from msgspec import Struct

from app.ids import PoolId, WorkerId
from app.messages import Lease


class Candidate(Struct, frozen=True):
    """One live worker: what it says of itself, and what has been sent there and is not finished."""

    lease: Lease
    requests: int = 0
    blocks: int = 0  # KV blocks
    tokens: int = 0  # prompt tokens


class Ask(Struct, frozen=True):
    """What has to be placed."""

    prompt_tokens: int
    max_tokens: int
    n: int = 1  # answers to the one prompt


class Limits(Struct, frozen=True):
    max_queued: int  # requests beyond `max_running` above which a worker is full
    retry_after_s: int


class Placement(Struct, frozen=True):
    pool: PoolId
    worker: WorkerId
    blocks: int  # KV blocks to reserve
    tokens: int  # prompt tokens to reserve
