"""Answers that have ended here lately: Redis may come back without its last seconds, and so without their ends."""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from app.api.resumable.store import Lost, ResumableStore, Unkept
from app.ids import RequestId
from app.messages.kept import KeptRequest
from app.telemetry import logger

log = logger(__name__)

_UNSAVED_S = 5.0  # Redis writes to its disk each second, and up to two later where that is busy; then some looks


class Ended(NamedTuple):
    """An answer whose end is in Redis, but not on its disk for certain."""

    kept: KeptRequest
    epoch: int
    batches: list[bytes]
    is_whole: bool
    at: float  # monotonic


class EndedAnswers:
    def __init__(self, resumable_store: ResumableStore, tell: Callable[[RequestId], None]) -> None:
        """`tell` wakes the readers of an answer."""
        self._resumable_store, self._tell = resumable_store, tell
        self._ended: dict[RequestId, Ended] = {}

    def add(self, answer: Ended) -> None:
        self._ended[answer.kept.id] = answer

    async def end_again(self, now: float) -> None:
        """Writes what a Redis that came back without its last seconds has lost of answers that were made here.

        Another owner, also this one, would make the rest anew, of which readers have had some already.
        """
        standings = await self._resumable_store.standing(list(self._ended))
        for (request, one), standing in zip(list(self._ended.items()), standings, strict=True):
            is_lost = standing is not None and standing.epoch == one.epoch and not standing.ended
            if is_lost:
                log.warning("answer_ended_again", request=request, **one.kept.names)
                with suppress(Lost, Unkept):
                    await self._resumable_store.note(one.kept, one.epoch, one.batches, ended=True, whole=one.is_whole)
                self._tell(request)
            if is_lost or now - one.at > _UNSAVED_S:
                del self._ended[request]
