"""A request on its way: what is sent, where it may go, and the answer that awaits it."""

import asyncio
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.dispatch.event_queue import EventQueue
from app.errors import XylemError
from app.ids import PoolId, WorkerId
from app.kv.blocks import prompt_hashes
from app.messages import Adapter, Delta, Event, Job, KvHandle, PartialOutput, StageKind, Timing
from app.pools import Routing
from app.routing.candidates import Decision
from app.store import clock

# Numbers of one owner's; those of the next one are above. What gives way may be given back every few seconds for a day.
ATTEMPTS = 1_000_000

Groups = tuple[tuple[PoolId, ...], ...]
# Where it waits when there is no room: in lines of their own those that give way, and those that want one adapter.
Line = tuple[Groups, bool, str]


class RoutingHints(Struct, frozen=True):
    """What a client may say about where its request goes."""

    rules: Mapping[str, Any] = {}  # fields of the pool's `routing` that it overrides
    session: str | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    explain: bool = False


class ChoiceOutput(Struct, gc=False):
    """One choice so far, over all attempts."""

    tokens: list[int]
    text_len: int = 0  # characters
    finished: bool = False

    def add(self, delta: Delta) -> None:
        """Once per token."""
        self.tokens.extend(delta.tokens)
        self.text_len += len(delta.text)
        if delta.finish is not None:
            self.finished = True


class State(StrEnum):
    """Of a request that has not ended; `app/api/README.md` draws it."""

    PLACING = "placing"  # a worker is being chosen
    HELD = "held"  # there is no room, no worker or no Redis
    PREFILLING = "prefilling"  # with the worker that computes its prompt for another one
    QUEUED = "queued"  # with its worker, and nothing has come of this attempt
    ANSWERING = "answering"


class InFlight:
    __slots__ = (
        "_hashes",
        "adapter",
        "answer",
        "apart",
        "deaths",
        "decisions",
        "doing",
        "early",
        "early_deaths",
        "ends",
        "groups",
        "handoff",
        "held_since",
        "job",
        "out",
        "placed",
        "placed_at",
        "placings",
        "prefill_groups",
        "refused",
        "retry",
        "timings",
        "wishes",
    )

    def __init__(
        self, job: Job, groups: Groups, answer: EventQueue, wishes: RoutingHints, prefill_groups: Groups = ()
    ) -> None:
        """`groups` of pools to choose a worker from, the preferred group first; and those that may do the prefill."""
        # Seconds of the monotonic clock: only this process decides when its time is over.
        self.ends = time.monotonic() + job.deadline - clock.now()
        self.job, self.groups, self.answer, self.wishes = job, groups, answer, wishes
        self.prefill_groups = prefill_groups
        self.apart = True  # its prompt may be computed by another worker
        self.early: list[Event] | None = None  # events before the first token, while that one is awaited
        self.doing = 0  # which of the job's stages has it; -1: the last
        self.handoff: KvHandle | None = None  # the KV of its prompt lies there already
        self.out = [ChoiceOutput([]) for _ in range(job.sampling.n)]
        self.deaths = 0  # of workers that had it
        self.early_deaths = 0  # of these, before anything of that attempt had come
        self.placings = 0  # of this attempt
        self.refused: XylemError | None = None  # why it is held, if not for want of room
        self.placed_at = 0.0  # by Redis' clock
        self.held_since = 0.0  # seconds of the monotonic clock; 0: there was room at once
        self.timings: list[Timing] = []
        self.decisions: dict[StageKind, Decision] = {}  # about its stages, if they are to be explained
        self.placed: asyncio.Future[None] | None = None  # until it is on its worker's queue
        self.retry: asyncio.Task[None] | None = None  # what places it anew
        self.adapter: Adapter | None = None  # if it wants one: as it was when it was last looked at
        self._hashes: dict[int, bytes] = {}

    @property
    def line(self) -> Line:
        return self.groups, self.job.aside, self.adapter_name

    @property
    def adapter_name(self) -> str:
        """Without its version; "": the model as it is."""
        return self.job.adapter.rpartition("@")[0] if self.job.adapter is not None else ""

    def resolve(self, adapter: Adapter) -> None:
        """Its adapter's version of today. KV of another one is no use to it."""
        self.adapter = adapter
        if adapter.versioned != self.job.adapter:
            self.job = replace(self.job, adapter=adapter.versioned, prefilled=None, at_once=False)
            self.handoff = None
            self._hashes.clear()

    @property
    def state(self) -> State:
        if not self.job.worker:
            return State.HELD if self.held_since else State.PLACING
        if self.prefilling:
            return State.PREFILLING
        return State.ANSWERING if self.got_on else State.QUEUED

    @property
    def is_placed(self) -> bool:
        """Or held for long; no placing that somebody waits for is under way."""
        return self.placed is not None and self.placed.done()

    def wait_no_more(self) -> None:
        """Whatever keeps the placer: its answer has its end, or nobody awaits one."""
        if self.placed is not None and not self.placed.done():
            self.placed.set_result(None)

    def workers(self) -> list[tuple[WorkerId, PoolId]]:
        """Without which of them it can't go on."""
        return [(stage.worker, stage.pool) for stage in self.job.stages[self.doing :][:1]]

    @property
    def prefilling(self) -> bool:
        """With a worker that computes its prompt for another one."""
        return bool(self.job.stages) and self.job.stages[self.doing].kind == "prefill"

    def unplace(self) -> None:
        self.job = replace(self.job, stages=[])

    def go_on(self, out: list[ChoiceOutput]) -> None:
        """Behind what somebody else has had of its choices."""
        self.out = out
        self.job = replace(self.job, begun=self.begun())

    def begun(self) -> list[PartialOutput]:
        """For the worker that goes on with it."""
        if not any(out.tokens or out.finished for out in self.out):
            return []
        return [PartialOutput(list(out.tokens), out.text_len, out.finished) for out in self.out]

    def again(self, handoff: KvHandle | None) -> None:
        """The next attempt, on no worker yet: events of older ones are ignored from now on."""
        old = self.job
        self.job = replace(
            old,
            attempt=old.attempt + 1,
            stages=[],
            begun=self.begun(),
            prefilled=old.prefilled if handoff else None,
            at_once=old.at_once and handoff is not None,
        )
        self.handoff, self.early, self.doing, self.placings, self.held_since = handoff, None, 0, 0, 0.0
        self._hashes.clear()

    @property
    def attempts(self) -> int:
        """How many there were, its former owners' last ones among them."""
        return sum(divmod(self.job.attempt, ATTEMPTS)) + 1

    @property
    def got_on(self) -> bool:
        """Something came of this attempt."""
        return sum(len(out.tokens) for out in self.out) > sum(len(begun.tokens) for begun in self.job.begun)

    @property
    def context(self) -> list[int]:
        """The tokens that an engine computes before it goes on: of several choices, the shared ones."""
        job = self.job
        return job.prompt + job.begun[0].tokens if len(job.begun) == 1 else job.prompt

    def hashes(self, block_size: int) -> bytes:
        """The packed block hashes of `context`; none of inputs, whose KV no other request finds."""
        if self.job.inputs is not None:
            return b""
        known = self._hashes.get(block_size)
        if known is None:
            known = self._hashes[block_size] = prompt_hashes(
                self.context, block_size, self.job.cache_salt, self.job.adapter
            )
        return known

    def rules(self, routing: Routing) -> Routing:
        return routing.model_copy(update=dict(self.wishes.rules)) if self.wishes.rules else routing
