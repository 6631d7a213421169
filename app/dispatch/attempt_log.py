"""The attempts of one prompt of a traced request."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.messages.job import Job, Timing
from app.messages.kinds import StageKind
from app.messages.trace import TracePlace
from app.routing.candidates import Decision
from app.store import clock
from app.tracing.traceparent import new_span_id

_MOST = 32  # attempts: an aside request may give way every few seconds for a day


class LoggedAttempt(Struct, frozen=True):
    """One try to answer a prompt; times in seconds since the epoch, by Redis' clock."""

    number: int  # from 1
    span: str  # the id of its span, which its engines know as their parent
    job: Job
    began: float
    placed: float  # before `began`: never
    ended: float
    decisions: Mapping[StageKind, Decision]  # about its stages
    timings: Sequence[Timing]  # of its workers; that of an earlier attempt's prefill worker may be among them
    error: str = ""  # why it ended without an answer


class AttemptLog:
    """Notes each attempt at its end, and keeps the last ones. Used by nothing that runs per token."""

    def __init__(self, place: TracePlace) -> None:
        self._place = place
        self.attempts: list[LoggedAttempt] = []
        self._begin()

    @property
    def traceparent(self) -> str:
        """The traceparent of the attempt that runs."""
        return replace(self._place, span=self._span).traceparent

    def ended(
        self,
        job: Job,
        number: int,
        placed_at: float,
        decisions: Mapping[StageKind, Decision],
        timings: Sequence[Timing],
        error: str,
    ) -> None:
        """The attempt that runs has ended; the next one begins, if there is one. Arguments as in `LoggedAttempt`."""
        self.attempts.append(
            LoggedAttempt(
                number,
                self._span,
                job=job,
                began=self._began,
                placed=placed_at,
                ended=clock.now(),
                decisions=decisions,
                timings=timings,
                error=error,
            )
        )
        del self.attempts[:-_MOST]
        self._begin()

    def _begin(self) -> None:
        self._span, self._began = new_span_id(), clock.now()
