"""Makes segments with times out of a window's tokens. Pure."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from app.dispatch.models.speech import TICK_S, Speech


class Segment(Struct, frozen=True):
    start: float  # seconds, from the sound's beginning
    end: float
    text: str  # as the model writes it: most begin with a space
    tokens: list[int]
    logprob: float | None = None  # the mean of its tokens; None: not asked for


def segments(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    speech: Speech,
    decode: Callable[[list[int]], str],
    offset_s: float,
    length_s: float,
) -> list[Segment]:
    """A model that tells times writes one after each segment, and one before, unless the last one holds.

    What it says is put in order: no time is before an earlier one, or behind the window. `logprobs`: one for each
    token, or none at all. `offset_s`: where the window begins.
    """
    all_segments: list[Segment] = []
    here: list[int] = []
    chances: list[float] = []
    start = 0.0

    def close(end: float) -> None:
        text = decode(here)
        if text.strip():
            mean = sum(chances) / len(chances) if chances else None
            all_segments.append(Segment(_round(offset_s + start), _round(offset_s + end), text, here[:], mean))
        here.clear()
        chances.clear()

    for index, token in enumerate(tokens):
        if not speech.is_time(token):
            here.append(token)
            chances += logprobs[index : index + 1]
            continue
        assert speech.first_time is not None
        end_s = min(max((token - speech.first_time) * TICK_S, start), length_s)
        if here:
            close(end_s)
        start = end_s
    if here:
        close(length_s)
    return all_segments


def _round(seconds: float) -> float:
    return round(seconds, 3)
