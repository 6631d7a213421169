"""A request in flight: its job, the pools that it may be placed in, and its answer so far."""

import asyncio
import time
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.dispatch.attempt_log import AttemptLog
from app.dispatch.event_queue import EventQueue
from app.dispatch.media.media_store import Samples
from app.errors import XylemError
from app.ids import HOME, CellId, PoolId, WorkerId
from app.kv.blocks import HASH_BYTES, point_hashes
from app.messages.events import Delta, Event
from app.messages.handoff import KvHandle
from app.messages.job import Job, PartialOutput, Timing
from app.messages.kinds import StageKind
from app.messages.lease import Grid
from app.messages.wanted import Adapter
from app.pools.schema import Routing
from app.routing.candidates import Decision
from app.routing.tenant_service import Charge
from app.store import clock
from app.tenants.records import NOBODY

# Attempt numbers for one owner; the next owner's begin above. Aside requests may come back every few seconds for a day.
ATTEMPTS = 1_000_000

Groups = tuple[tuple[PoolId, ...], ...]
# The waiting line of held requests: of these pools, whether of aside requests, and the adapter's name.
Line = tuple[Groups, bool, str]
_NO_PARAMS: Mapping[str, str] = MappingProxyType({})


class RoutingHints(Struct, frozen=True):
    """A client's wishes about where its request is placed."""

    rules: Mapping[str, Any] = {}  # fields that override the pool's `routing`
    session: str | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    explain: bool = False


class ChoiceOutput(Struct, gc=False):
    """One choice so far, over all attempts."""

    tokens: list[int]
    text_len: int = 0  # characters
    finished: bool = False
    weights: str = ""  # the version that made the last token

    def add(self, delta: Delta) -> None:
        """Adds a delta. Called once per token, so it has to be fast."""
        self.tokens.extend(delta.tokens)
        self.text_len += len(delta.text)
        self.weights = delta.weights
        if delta.finish is not None:
            self.finished = True


class PlacedPrompt(Struct, frozen=True):
    """A prompt's pool and blocks, as placing needed them."""

    pool: PoolId
    step: int  # tokens from one hash to the next
    blocks: bytes  # the first of its packed `point_hashes`


class State(StrEnum):
    """The state of a request that has not ended; `app/api/README.md` has the diagram."""

    PLACING = "placing"  # a worker is being chosen
    HELD = "held"  # there is no room, no worker or no Redis
    ENCODING = "encoding"  # its pictures are, on other workers
    PREFILLING = "prefilling"  # on the prefill worker, before the decode worker has it
    QUEUED = "queued"  # on its worker, and this attempt has no output yet
    ANSWERING = "answering"


class InFlight:
    __slots__ = (
        "_hashes",
        "adapter",
        "answer",
        "before_first",
        "cell",
        "charge",
        "deaths",
        "decisions",
        "early_deaths",
        "encode_pools",
        "ends_at",
        "expected",
        "first_tokens",
        "groups",
        "handoff",
        "held_since",
        "job",
        "log",
        "may_encode",
        "may_split",
        "out",
        "params",
        "placed",
        "placed_at",
        "placings",
        "prefill_groups",
        "refused",
        "refused_in",
        "retry",
        "samples",
        "samples_lost",
        "stage_index",
        "tenant",
        "timings",
        "wishes",
    )

    def __init__(
        self,
        job: Job,
        groups: Groups,
        answer: EventQueue,
        wishes: RoutingHints,
        prefill_groups: Groups = (),
        encode_pools: tuple[PoolId, ...] = (),
        params: Mapping[str, str] = _NO_PARAMS,
        log: AttemptLog | None = None,
    ) -> None:
        """`groups` of pools to choose a worker from, the preferred first; `prefill_groups`: pools for the prefill.

        `encode_pools`: pools that encode its pictures. `params`: as `unmet_need` has it. `log`: if it is traced.
        """
        # Seconds of the monotonic clock: only this process decides when the deadline is over.
        self.ends_at = time.monotonic() + job.deadline - clock.now()
        self.job, self.groups, self.answer, self.wishes = job, groups, answer, wishes
        self.log = log
        self.cell: CellId = HOME  # where it is, or is being placed
        self.refused_in: dict[CellId, float] = {}  # cells that have just refused it, and when (monotonic)
        self.prefill_groups = prefill_groups
        self.may_split = True  # its prompt may be computed by another worker
        self.encode_pools, self.params = encode_pools, params
        self.may_encode = True  # its pictures may be encoded by other workers
        self.before_first: list[Event] | None = None  # events that came before the awaited first token
        self.first_tokens = 0  # those of this attempt that a prefill worker has given
        self.expected = -1  # prompt tokens that the worker is expected to have cached; -1: nobody can tell
        self.stage_index = 0  # index of the job's current stage; -1: the last
        self.handoff: KvHandle | None = None  # where its prompt's KV is already
        self.out = [ChoiceOutput([]) for _ in range(job.sampling.n)]
        self.deaths = 0  # of workers while they had it
        self.early_deaths = 0  # of these, before that worker gave any output
        self.placings = 0  # of this attempt
        self.refused: XylemError | None = None  # why it is held, if not for lack of room
        self.placed_at = 0.0  # by Redis' clock
        self.held_since = 0.0  # seconds of the monotonic clock; 0: there was room at once
        self.timings: list[Timing] = []
        self.decisions: dict[StageKind, Decision] = {}  # about its stages, if they are to be explained
        self.placed: asyncio.Future[None] | None = None  # done when it is on its worker's queue
        self.samples: Samples | None = None  # what this process has written of its media: Redis may lose it
        self.samples_lost = 0  # times that it did
        self.retry: asyncio.Task[None] | None = None  # places it anew
        self.adapter: Adapter | None = None  # its adapter, if it wants one, as of the last look
        self.tenant = NOBODY.tenant  # whose request it is
        self.charge: Charge | None = None  # once it was placed: what its tenant was charged
        self._hashes: dict[tuple[Grid, str], bytes] = {}

    @property
    def line(self) -> Line:
        return self.groups, self.job.aside, self.adapter_name

    @property
    def adapter_name(self) -> str:
        """The adapter's name without its version; "": the model as it is."""
        return self.job.adapter.rpartition("@")[0] if self.job.adapter is not None else ""

    def resolve(self, adapter: Adapter) -> None:
        """Its adapter's version of today. KV of another one is no use to it."""
        self.adapter = adapter
        if adapter.versioned != self.job.adapter:
            self.job = replace(self.job, adapter=adapter.versioned)
            self.drop_handoff()
            self._hashes.clear()

    def drop_handoff(self) -> None:
        """Its prompt is computed anew."""
        if self.handoff is not None or self.job.prefilled is not None or self.job.at_once:
            self.job = replace(self.job, prefilled=None, at_once=False)
            self.handoff = None

    @property
    def state(self) -> State:
        if not self.job.worker:
            return State.HELD if self.held_since else State.PLACING
        if self.encoding:
            return State.ENCODING
        if self.prefilling:
            return State.PREFILLING
        return State.ANSWERING if self.has_output else State.QUEUED

    @property
    def is_placed(self) -> bool:
        """Whether `place` has returned: it is on a worker, or has been held for long."""
        return self.placed is not None and self.placed.done()

    def end_wait(self) -> None:
        """Ends the wait for the placer: the answer has ended, or nobody awaits it."""
        if self.placed is not None and not self.placed.done():
            self.placed.set_result(None)

    def workers(self) -> list[tuple[WorkerId, PoolId]]:
        """The workers of the current stage, without which the request can't go on; empty if unplaced."""
        current = self.job.stages[self.stage_index :]
        encoders = [stage for stage in current if stage.kind == "encode_pictures"]
        return [(stage.worker, stage.pool) for stage in encoders or current[:1]]

    @property
    def wants_encoding(self) -> bool:
        """Whether other workers may encode its pictures. Not of aside requests, which give way where they run."""
        job = self.job
        return bool(self.encode_pools and job.media and self.may_encode and self.handoff is None and not job.aside)

    @property
    def encoding(self) -> bool:
        """Whether workers are encoding its pictures."""
        return bool(self.job.stages) and self.job.stages[self.stage_index].kind == "encode_pictures"

    def pictures_encoded(self) -> None:
        """Goes on to the stage behind the encoding; a later stage may have told so before."""
        if self.encoding:
            self.stage_index = self.encoders

    @property
    def encoders(self) -> int:
        """Number of workers that encode its pictures: its first stages."""
        return sum(stage.kind == "encode_pictures" for stage in self.job.stages)

    @property
    def prefilling(self) -> bool:
        """Whether a prefill worker has it."""
        return bool(self.job.stages) and self.job.stages[self.stage_index].kind == "prefill"

    def unplace(self) -> None:
        self.job = replace(self.job, stages=[])

    def go_on(self, out: list[ChoiceOutput]) -> None:
        """Continues choices that another process began."""
        self.out = out
        self.job = replace(self.job, begun=self.begun())

    def begun(self) -> list[PartialOutput]:
        """The output so far, for the worker that continues it."""
        if not any(out.tokens or out.finished for out in self.out):
            return []
        return [PartialOutput(list(out.tokens), out.text_len, out.finished) for out in self.out]

    def again(self, handoff: KvHandle | None, why: str) -> None:
        """Begins the next attempt, on no worker yet: events of older attempts are ignored from now on.

        `why`: the code of what ended the last one.
        """
        old = self.job
        self.log_attempt(why)
        self.job = replace(
            old,
            attempt=old.attempt + 1,
            stages=[],
            begun=self.begun(),
            prefilled=old.prefilled if handoff else None,
            at_once=old.at_once and handoff is not None,
            traceparent=old.traceparent if self.log is None else self.log.traceparent,
        )
        self.handoff, self.before_first, self.stage_index, self.placings, self.held_since = handoff, None, 0, 0, 0.0
        self.first_tokens = 0
        self._hashes.clear()

    def log_attempt(self, error: str) -> None:
        """Notes the attempt, which has ended, if the request is traced. `error`: "" if it is answered."""
        if self.log is not None:
            timings = self.timings or [timing for timing in (self.job.prefilled,) if timing is not None]
            self.log.ended(self.job, self.attempts, self.placed_at, self.decisions, timings, error=error)

    @property
    def attempts(self) -> int:
        """Number of attempts, with the last one of each former owner."""
        return sum(divmod(self.job.attempt, ATTEMPTS)) + 1

    @property
    def has_output(self) -> bool:
        """Whether this attempt has had output."""
        return self._given > 0

    @property
    def has_own_output(self) -> bool:
        """Whether the worker that has it has given output: a first token may be of who computed the prompt."""
        return self._given > (0 if self.prefilling else self.first_tokens)

    @property
    def _given(self) -> int:
        return sum(len(out.tokens) for out in self.out) - sum(len(part.tokens) for part in self.job.begun)

    @property
    def context(self) -> list[int]:
        """The tokens that an engine computes before the next new one; with several choices, those that they share."""
        job = self.job
        return job.prompt + job.begun[0].tokens if len(job.begun) == 1 else job.prompt

    @property
    def weights(self) -> str | None:
        """The version of the weights that made its output so far; None: it has none."""
        return next((out.weights for out in self.out if out.tokens), None)

    def hashes(self, grid: Grid, weights: str = "") -> bytes:
        """The packed `point_hashes` of `context`, 8 bytes each; empty for inputs and paintings, which leave no KV.

        `weights`: the version that has computed the blocks.
        """
        if self.job.kind != "decode":
            return b""
        hashes = self._hashes.get((grid, weights))
        if hashes is None:
            job = self.job
            hashes = point_hashes(self.context, grid, job.cache_salt, job.adapter, weights, media=job.media)
            self._hashes[grid, weights] = hashes
        return hashes

    def as_placed(self, most: int) -> PlacedPrompt | None:
        """The prompt with up to `most` blocks; None: it is on no worker, or leaves no KV."""
        if not self._hashes or not self.job.stages:
            return None
        (grid, _weights), blocks = next(iter(self._hashes.items()))
        return PlacedPrompt(self.job.stages[-1].pool, grid.step, blocks[: most * HASH_BYTES])

    def rules(self, routing: Routing) -> Routing:
        return routing.model_copy(update=dict(self.wishes.rules)) if self.wishes.rules else routing
