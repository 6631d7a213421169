"""Corrects remembered expansions of media by what an engine's own prompt says. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from app.dispatch.media.expansions import Shown
from app.dispatch.media.media_reader import Samples
from app.messages.job import Job


class Correction(NamedTuple):
    shown: Shown
    tokens: Sequence[int] | None  # None: they can't be told apart; the next one asks again


def corrections(job: Job, samples: Samples, expansion: Sequence[int]) -> Iterator[Correction]:
    """Yields none for media that the model's files explain. `expansion`: the engine's prompt."""
    expansions = {one.media.sha256: one.becomes for one in samples.values() if one.becomes is not None}
    if len(job.media) == 1 and not any(one.sign.joins for one in expansions.values()):
        (one,) = job.media
        if (becomes := expansions.get(one.sha256)) is not None:
            end = len(expansion) - (len(job.prompt) - one.offset - one.length)
            is_there = expansion[: one.offset] == job.prompt[: one.offset]
            yield Correction(
                Shown(becomes.sign, one.shape, of=becomes.of), expansion[one.offset : end] if is_there else None
            )
        return
    for becomes, shape in ((expansions[one.sha256], one.shape) for one in job.media if one.sha256 in expansions):
        yield from (Correction(Shown(becomes.sign, shape, number, becomes.of), None) for number in becomes.tokens)
