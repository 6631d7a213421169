"""A kept answer as a reader has it: like the `Generation` that makes it, but from the log."""

from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Self

from app.api.resumable.event_log import EventLog
from app.api.resumable.owner import AnswerOwner
from app.api.resumable.store import Found, ResumableStore
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.errors import XylemError, from_wire
from app.messages.events import Delta, Done, Failed


class Replay(GenerationBase):
    """Always from the beginning: the first `skip` deltas, which the reader has, are counted but not sent."""

    def __init__(
        self,
        resumable_store: ResumableStore,
        answer_owner: AnswerOwner,
        plan: GenerationPlan,
        existing: Found,
        skip: int = 0,
        limit_headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`limit_headers`: those with the API key's remaining limits."""
        super().__init__(existing.kept.id, existing.kept.created, plan)
        self.kept = existing.kept
        self.log = EventLog(resumable_store, answer_owner, existing.kept)
        self.skip = skip
        self._limit_headers = limit_headers
        self._failure: XylemError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """The answer continues without this reader."""

    async def deltas(self) -> list[tuple[int, Delta]]:
        """Deltas, as of `Generation.deltas`. Raises: the error that ended the answer; StoreDown."""
        out: list[tuple[int, Delta]] = []
        while not out and self._failure is None and (events := await self.log.batch()):
            for event in events:
                if isinstance(event, Delta):
                    out.append((event.index, event))
                elif isinstance(event, Done):
                    self.cached_tokens += event.cached_tokens
                    self.unshown += event.unshown
                elif isinstance(event, Failed):
                    self._failure = from_wire(event.code, event.message, event.param)
        if not out and self._failure is not None:
            raise self._failure
        return out

    def headers(self) -> dict[str, str]:
        return {**self.plan.headers, **self._limit_headers, "x-xylem-kept": self.id}
