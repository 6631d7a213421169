"""One attempt to answer a request: where it is, and how far it has come there."""

import time
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.errors import XylemError
from app.ids import HOME, CellId, PoolId, WorkerId
from app.kv.blocks import HASH_BYTES, point_hashes
from app.messages.events import Event
from app.messages.handoff import KvHandle
from app.messages.job import Job, PartialOutput, Stage, Timing
from app.messages.kinds import StageKind
from app.messages.lease import Grid
from app.messages.wanted import Adapter
from app.routing.candidates import Decision


class PlacedPrompt(Struct, frozen=True):
    """A prompt's pool and blocks, as placing needed them."""

    pool: PoolId
    step: int  # tokens from one hash to the next
    blocks: bytes  # the first of its packed `point_hashes`


class Attempt(Struct, frozen=True):
    """A value: whatever changes makes another one, which replaces it. None is made for a token."""

    job: Job  # as its workers get it
    cell: CellId = HOME  # where it is, or is being placed
    adapter: Adapter | None = None  # its adapter, if it wants one, as of the last look
    handoff: KvHandle | None = None  # where its prompt's KV is already
    may_split: bool = True  # its prompt may be computed by another worker
    may_encode: bool = True  # its pictures may be encoded by other workers
    held_since: float = 0.0  # seconds of the monotonic clock; 0: there was room at once
    refused: XylemError | None = None  # why it is held, if not for lack of room
    placings: int = 0
    placed_at: float = 0.0  # by Redis' clock: when it, or else the attempt before, was placed
    decisions: Mapping[StageKind, Decision] = {}  # about its stages, if they are to be told
    expected: int = -1  # prompt tokens that the worker is expected to have cached; -1: nobody can tell
    stage_index: int = 0  # index of the job's current stage; -1: the last
    before_first: list[Event] | None = None  # events that came before the awaited first token
    first_tokens: int = 0  # those that a prefill worker has given
    known_hashes: dict[tuple[Grid, str], bytes] = {}  # of `context`

    def __post_init__(self) -> None:
        stages = len(self.job.stages)
        assert -1 <= self.stage_index < max(1, stages)
        assert self.before_first is None or (stages > 1 and not self.first_tokens), "nobody else gives a first token"
        assert self.refused is None or self.held_since, "who is refused waits, or ends"

    @classmethod
    def after(
        cls, previous: "Attempt", output: list[PartialOutput], handoff: KvHandle | None, traceparent: str
    ) -> "Attempt":
        """The next one, on no worker yet: events of older attempts are ignored from now on.

        `output`: so far. `handoff`: where the prompt's KV is, if its next worker can use it.
        """
        old = previous.job
        job = replace(
            old,
            attempt=old.attempt + 1,
            stages=[],
            begun=output,
            prefilled=old.prefilled if handoff else None,
            at_once=old.at_once and handoff is not None,
            meets=None,
            traceparent=traceparent,
        )
        return cls(
            job,
            previous.cell,
            previous.adapter,
            handoff,
            may_split=previous.may_split,
            may_encode=previous.may_encode,
            placed_at=previous.placed_at,
        )

    def in_cell(self, cell: CellId, token_redis: int) -> "Attempt":
        if (cell, token_redis) == (self.cell, self.job.token_redis):
            return self
        return replace(self, cell=cell, job=replace(self.job, token_redis=token_redis))

    def with_adapter(self, adapter: Adapter) -> "Attempt":
        """Returns it with its adapter's version of today. KV of another one is no use to it."""
        if adapter.versioned == self.job.adapter:
            return self if adapter is self.adapter else replace(self, adapter=adapter)
        attempt = self.without_handoff()
        job = replace(attempt.job, adapter=adapter.versioned)
        return replace(attempt, job=job, adapter=adapter, known_hashes={})

    def without_handoff(self) -> "Attempt":
        """Returns it with its prompt to be computed anew."""
        return replace(self, job=replace(self.job, prefilled=None, at_once=False), handoff=None)

    def held(self, why: XylemError | None) -> "Attempt":
        """Returns it waiting: for lack of room, or for the reason `why`."""
        return replace(self, refused=why, placings=0, held_since=self.held_since or time.monotonic())

    def decided(
        self, stages: list[Stage], weights: str, decisions: Mapping[StageKind, Decision], *, behind: bool
    ) -> "Attempt":
        """Returns it with workers chosen. `weights`: theirs; `decisions`: if they are told; `behind`: as in `Job`."""
        job = replace(self.job, stages=stages, weights=weights, behind=behind)
        placings = self.placings + 1
        return replace(
            self, job=job, placings=placings, decisions=decisions, stage_index=0, before_first=None, first_tokens=0
        )

    def sent(self, job: Job, at: float, *, in_sequence: bool, awaits_first: bool) -> "Attempt":
        """Returns it as its workers get it, as `job`. `in_sequence`: one after the other; else the last has it at once.

        `awaits_first`: its first token is another worker's than the others.
        """
        before_first: list[Event] | None = [] if awaits_first else None
        index = 0 if in_sequence else -1
        return replace(self, job=job, placed_at=at, stage_index=index, before_first=before_first)

    def prefilled(self, timing: Timing | None) -> "Attempt":
        """Returns it with its prompt computed on the prefill worker."""
        return replace(self, job=replace(self.job, prefilled=timing or self.job.prefilled))

    def unplaced(self) -> "Attempt":
        return replace(self, job=replace(self.job, stages=[]), stage_index=0, before_first=None)

    def at_stage(self, index: int) -> "Attempt":
        return self if index == self.stage_index else replace(self, stage_index=index)

    def pictures_encoded(self) -> "Attempt":
        """Goes on to the stage behind the encoding; a later stage may have told so before."""
        behind = -1 if self.job.at_once else self.encoders
        return self.at_stage(behind) if self.stage == "encode_pictures" else self

    @property
    def stage(self) -> StageKind | None:
        """The kind of the current stage; None: it is on no worker."""
        return self.job.stages[self.stage_index].kind if self.job.stages else None

    @property
    def encoders(self) -> int:
        """Number of workers that encode its pictures: its first stages."""
        return sum(stage.kind == "encode_pictures" for stage in self.job.stages)

    @property
    def workers(self) -> Sequence[tuple[WorkerId, PoolId]]:
        """The workers of the current stage, without which the request can't go on; empty if unplaced."""
        current = self.job.stages[self.stage_index :]
        encoders = [stage for stage in current if stage.kind == "encode_pictures"]
        return [(stage.worker, stage.pool) for stage in encoders or current[:1]]

    @property
    def context(self) -> list[int]:
        """The tokens that an engine computes before the next new one; with several choices, those that they share."""
        job = self.job
        return job.prompt + job.begun[0].tokens if len(job.begun) == 1 else job.prompt

    def hashes(self, grid: Grid, weights: str = "") -> bytes:
        """The packed `point_hashes` of `context`, 8 bytes each; empty for inputs and paintings, which leave no KV.

        `weights`: the version that has computed the blocks.
        """
        if self.job.kind != "decode":
            return b""
        hashes = self.known_hashes.get((grid, weights))
        if hashes is None:
            job = self.job
            hashes = point_hashes(self.context, grid, job.cache_salt, job.adapter, weights, media=job.media)
            self.known_hashes[grid, weights] = hashes
        return hashes

    def as_placed(self, most: int) -> PlacedPrompt | None:
        """The prompt with up to `most` blocks; None: it is on no worker, or leaves no KV."""
        if not self.known_hashes or not self.job.stages:
            return None
        (grid, _weights), blocks = next(iter(self.known_hashes.items()))
        return PlacedPrompt(self.job.stages[-1].pool, grid.step, blocks[: most * HASH_BYTES])
