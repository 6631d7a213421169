"""A request on its way: what is sent, where it may go, and who awaits it."""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from app.api.answer import Answer
from app.ids import PoolId
from app.kv.blocks import prompt_hashes
from app.messages import Job
from app.pools import Routing
from app.routing.fleet import Decision


class Wishes(Struct, frozen=True):
    """What a client may say about where its request goes."""

    rules: Mapping[str, Any] = {}  # fields of the pool's `routing` that it overrides
    session: str | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    explain: bool = False


class Flight:
    __slots__ = (
        "_hashes",
        "answer",
        "began",
        "decision",
        "groups",
        "held_since",
        "job",
        "placed",
        "placings",
        "wishes",
    )

    def __init__(self, job: Job, groups: tuple[tuple[PoolId, ...], ...], answer: Answer, wishes: Wishes) -> None:
        """`groups` of pools to choose a worker from, the preferred group first."""
        self.job, self.groups, self.answer, self.wishes = job, groups, answer, wishes
        self.began = False  # a token has come back
        self.placings = 0
        self.held_since = 0.0  # seconds of the monotonic clock; 0: there was room at once
        self.decision: Decision | None = None
        self.placed: asyncio.Future[None]
        self._hashes: dict[int, bytes] = {}

    def hashes(self, block_size: int) -> bytes:
        """The prompt's packed block hashes."""
        known = self._hashes.get(block_size)
        if known is None:
            known = self._hashes[block_size] = prompt_hashes(self.job.prompt, block_size, self.job.cache_salt)
        return known

    def rules(self, routing: Routing) -> Routing:
        return routing.model_copy(update=dict(self.wishes.rules)) if self.wishes.rules else routing
