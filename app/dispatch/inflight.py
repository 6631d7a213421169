"""A request in flight: its job, the pools that it may be placed in, and its answer so far."""

import asyncio
import time
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.dispatch.attempt import Attempt
from app.dispatch.attempt_log import AttemptLog
from app.dispatch.event_queue import EventQueue
from app.dispatch.media.media_store import Samples
from app.ids import CellId, PoolId
from app.messages.events import Delta
from app.messages.handoff import KvHandle
from app.messages.held import HeldSamples
from app.messages.job import Job, PartialOutput, Timing
from app.messages.kinds import StageKind
from app.pools.schema import Routing
from app.routing.tenant_service import Charge
from app.store import clock
from app.tenants.records import NOBODY, Tenant

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


class State(StrEnum):
    """The state of a request that has not ended; `app/api/README.md` has the diagram."""

    PLACING = "placing"  # a worker is being chosen
    HELD = "held"  # there is no room, no worker or no Redis
    ENCODING = "encoding"  # its pictures are, on other workers
    PREFILLING = "prefilling"  # on the prefill worker, before the decode worker has it
    QUEUED = "queued"  # on its worker, and this attempt has no output yet
    ANSWERING = "answering"


_STATES: Mapping[StageKind, State] = {"encode_pictures": State.ENCODING, "prefill": State.PREFILLING}


class InFlight:
    """A request: what is asked, the answer so far, and its current attempt."""

    __slots__ = (
        "answer",
        "attempt",
        "charge",
        "deaths",
        "early_deaths",
        "encode_pools",
        "ends_at",
        "groups",
        "log",
        "out",
        "params",
        "placed",
        "prefill_groups",
        "refused_in",
        "retry",
        "samples",
        "samples_lost",
        "tenant",
        "timings",
        "unshown",
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
        tenant: Tenant = NOBODY.tenant,
        out: list[ChoiceOutput] | None = None,
    ) -> None:
        """`groups` of pools to choose a worker from, the preferred first; `prefill_groups`: pools for the prefill.

        `encode_pools`: pools that encode its pictures. `params`: as `unmet_need` has it. `log`: if it is traced.
        `tenant`: whose request it is. `out`: choices that another process began.
        """
        # Seconds of the monotonic clock: only this process decides when the deadline is over.
        self.ends_at = time.monotonic() + job.deadline - clock.now()
        self.groups, self.answer, self.wishes, self.log, self.tenant = groups, answer, wishes, log, tenant
        self.prefill_groups, self.encode_pools, self.params = prefill_groups, encode_pools, params
        self.out = [ChoiceOutput([]) for _ in range(job.sampling.n)] if out is None else out
        self.attempt = Attempt(job if out is None else replace(job, begun=self._begun()))
        self.refused_in: dict[CellId, float] = {}  # cells that have just refused it, and when (monotonic)
        self.deaths = 0  # of workers while they had it
        self.early_deaths = 0  # of these, before that worker gave any output
        self.timings: list[Timing] = []
        self.placed: asyncio.Future[None] | None = None  # done when it is on its worker's queue
        self.samples: Samples | None = None  # what this process has written of its media: Redis may lose it
        self.samples_lost = 0  # times that it did
        self.retry: asyncio.Task[None] | None = None  # places it anew
        self.unshown = 0  # tokens that a beam search has computed in this attempt, and that no answer has
        self.charge: Charge | None = None  # once it was placed: what its tenant was charged

    @property
    def job(self) -> Job:
        return self.attempt.job

    @property
    def line(self) -> Line:
        return self.groups, self.job.aside, self.adapter_name

    @property
    def adapter_name(self) -> str:
        """The adapter's name without its version; "": the model as it is."""
        adapter = self.job.adapter
        return adapter.rpartition("@")[0] if adapter is not None else ""

    @property
    def state(self) -> State:
        stage = self.attempt.stage
        if stage is None:
            return State.HELD if self.attempt.held_since else State.PLACING
        if stage in _STATES:
            return _STATES[stage]
        return State.ANSWERING if self.has_output else State.QUEUED

    @property
    def is_placed(self) -> bool:
        """Whether `place` has returned: it is on a worker, or has been held for long."""
        return self.placed is not None and self.placed.done()

    def end_wait(self) -> None:
        """Ends the wait for the placer: the answer has ended, or nobody awaits it."""
        if self.placed is not None and not self.placed.done():
            self.placed.set_result(None)

    @property
    def wants_encoding(self) -> bool:
        """Whether other workers may encode its pictures. Not of aside requests, which give way where they run."""
        attempt, job = self.attempt, self.job
        pictures = self.encode_pools and job.media
        return bool(pictures and attempt.may_encode and attempt.handoff is None and not job.aside)

    def held_at(self, offer: HeldSamples | None) -> None:
        """Its large samples are there, from where its next worker collects them."""
        if offer is not None:
            names = {one.sha256 for one in self.job.media}
            offer = replace(offer, sizes={name: size for name, size in offer.sizes.items() if name in names})
        self.attempt = replace(self.attempt, job=replace(self.job, held=offer))

    def again(self, handoff: KvHandle | None, why: str) -> None:
        """Begins the next attempt, on no worker yet. `why`: the code of what ended the last one."""
        self.log_attempt(why)
        self.unshown = 0  # it begins anew
        traceparent = self.job.traceparent if self.log is None else self.log.traceparent
        self.attempt = Attempt.after(self.attempt, self._begun(), handoff, traceparent)

    def _begun(self) -> list[PartialOutput]:
        """The output so far, for the worker that continues it."""
        if not any(out.tokens or out.finished for out in self.out):
            return []
        return [PartialOutput(list(out.tokens), out.text_len, out.finished) for out in self.out]

    def log_attempt(self, error: str) -> None:
        """Notes the attempt, which has ended, if the request is traced. `error`: "" if it is answered."""
        if self.log is not None:
            attempt, job = self.attempt, self.job
            timings = self.timings or [timing for timing in (job.prefilled,) if timing is not None]
            self.log.ended(job, self.attempts, attempt.placed_at, attempt.decisions, timings, error=error)

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
        return self._given > (0 if self.attempt.stage == "prefill" else self.attempt.first_tokens)

    @property
    def _given(self) -> int:
        before = sum(len(part.tokens) for part in self.job.begun)
        return sum(len(out.tokens) for out in self.out) - before + self.unshown

    @property
    def weights(self) -> str | None:
        """The version of the weights that made its output so far; None: it has none."""
        return next((out.weights for out in self.out if out.tokens), None)

    def rules(self, routing: Routing) -> Routing:
        return routing.model_copy(update=dict(self.wishes.rules)) if self.wishes.rules else routing
