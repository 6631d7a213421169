"""The answers, for `/openapi.json`."""

from collections.abc import Sequence
from typing import Any, Literal

from app.api.http.answer_schemas import Refusal, Shape, answered


class DurationUsage(Shape):
    type: Literal["duration"]
    seconds: int


class TranscriptionSegment(Shape):
    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float | None
    compression_ratio: float
    no_speech_prob: float | None


class Transcription(Shape):
    """A transcription; with `response_format` `json` only `text` and `usage`, with `verbose_json` all fields.

    Other formats are texts.
    """

    text: str
    usage: DurationUsage
    task: Literal["transcribe", "translate"] = "transcribe"
    language: str = ""
    duration: float = 0.0
    segments: Sequence[TranscriptionSegment] = ()


class TextDelta(Shape):
    type: Literal["transcript.text.delta"]
    delta: str


class TextDone(Shape):
    type: Literal["transcript.text.done"]
    text: str
    usage: DurationUsage


TRANSCRIPT: dict[int | str, dict[str, Any]] = answered(Transcription, TextDelta, TextDone, Refusal)
