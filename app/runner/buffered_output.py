"""The output of an aside job, which may be interrupted, or of a job that isn't streamed."""

import time

from app.ids import ApiId
from app.messages.deltas import merge
from app.messages.events import Delta
from app.messages.job import Job, PartialOutput
from app.runner.token_emitter import TokenEmitter

# How often the output of a job that isn't streamed is sent. What came since is not charged if its client leaves.
_PIECE_S = 1.0


class BufferedOutput:
    """Stands in for the emitter, and knows each choice's output so far."""

    def __init__(self, job: Job, emitter: TokenEmitter) -> None:
        self._emitter, self._api, self._whole = emitter, job.reply_to, job.whole
        self._kept: list[tuple[int, Delta]] = []
        self._since = time.monotonic()
        outputs = job.begun or [PartialOutput([])] * job.sampling.n
        self._tokens = [list(b.tokens) for b in outputs]
        self._text_len = [b.text_len for b in outputs]
        self._finished = [b.finished for b in outputs]

    @property
    def over(self) -> bool:
        return all(self._finished)

    @property
    def begun(self) -> list[PartialOutput]:
        """The output so far, for the engine that continues it; empty before the first token."""
        if not any(self._tokens) and not any(self._finished):
            return []
        return [
            PartialOutput(list(t), n, f) for t, n, f in zip(self._tokens, self._text_len, self._finished, strict=True)
        ]

    def emit(self, api: ApiId, delta: Delta) -> None:
        self._tokens[delta.index] += delta.tokens
        self._text_len[delta.index] += len(delta.text)
        self._finished[delta.index] |= delta.finish is not None
        if not self._whole:
            self._emitter.emit(api, delta)
            return
        self._emitter.withheld += 1
        self._kept.append((delta.index, delta))
        if time.monotonic() - self._since > _PIECE_S:
            self.flush()

    def flush(self) -> None:
        """Sends the output kept back."""
        deltas, self._kept, self._since = self._kept, [], time.monotonic()
        for _, delta in merge(((choice, d.weights), d) for choice, d in deltas):
            self._emitter.emit(self._api, delta)
