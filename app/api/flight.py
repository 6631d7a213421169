"""A request on its way: what is sent, where it may go, and who awaits it."""

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from app.api.answer import Answer
from app.ids import PoolId, WorkerId
from app.kv.blocks import prompt_hashes
from app.messages import Event, Job, Lent, Timing
from app.pools import Routing
from app.routing.fleet import Decision

Groups = tuple[tuple[PoolId, ...], ...]


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
        "apart",
        "began",
        "decision",
        "early",
        "groups",
        "handed",
        "handoff",
        "held_since",
        "job",
        "placed",
        "placed_at",
        "placings",
        "prefill_decision",
        "prefill_groups",
        "timings",
        "wishes",
    )

    def __init__(self, job: Job, groups: Groups, answer: Answer, wishes: Wishes, prefill_groups: Groups = ()) -> None:
        """`groups` of pools to choose a worker from, the preferred group first; and those that may do the prefill."""
        self.job, self.groups, self.answer, self.wishes = job, groups, answer, wishes
        self.prefill_groups = prefill_groups
        self.apart = True  # its prompt may be computed by another worker
        self.early: list[Event] | None = None  # what came before the first token, while that one is awaited
        self.handed = False  # its prefill is over, and the decode worker has it
        self.handoff: Lent | None = None  # the KV of its prompt lies there already
        self.began = False  # there is more out than `job.begun` says: nobody else can go on with it
        self.placings = 0
        self.placed_at = 0.0  # seconds since the epoch
        self.held_since = 0.0  # seconds of the monotonic clock; 0: there was room at once
        self.timings: list[Timing] = []
        self.decision: Decision | None = None
        self.prefill_decision: Decision | None = None
        self.placed: asyncio.Future[None]
        self._hashes: dict[int, bytes] = {}

    def workers(self) -> list[tuple[WorkerId, PoolId]]:
        """Without which of them it can't go on."""
        job = self.job
        if job.prefill is not None and not self.handed:
            return [(job.prefill.worker, job.prefill.pool)]
        return [(job.worker, job.pool)] if job.worker else []

    def hashes(self, block_size: int) -> bytes:
        """The prompt's packed block hashes."""
        known = self._hashes.get(block_size)
        if known is None:
            known = self._hashes[block_size] = prompt_hashes(self.job.prompt, block_size, self.job.cache_salt)
        return known

    def rules(self, routing: Routing) -> Routing:
        return routing.model_copy(update=dict(self.wishes.rules)) if self.wishes.rules else routing
