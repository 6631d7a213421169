"""Answers of transcriptions and translations in JSON, and their events."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from app.dispatch.models.speech import SpeechTask
from app.schemas.answers import absent_means


class DurationUsage(TypedDict, closed=True):
    type: Literal["duration"]
    seconds: int


class TranscriptionSegment(TypedDict, closed=True):
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


class Transcription(TypedDict, closed=True):
    """A transcription; with `response_format` `json` only `text` and `usage`, with `verbose_json` all fields.

    Other formats are texts.
    """

    text: str
    usage: DurationUsage
    task: NotRequired[Annotated[SpeechTask, absent_means("transcribe")]]
    language: NotRequired[Annotated[str, absent_means("")]]
    duration: NotRequired[Annotated[float, absent_means(0.0)]]
    segments: NotRequired[Annotated[list[TranscriptionSegment], absent_means([])]]


class TextDelta(TypedDict, closed=True):
    type: Literal["transcript.text.delta"]
    delta: str


class TextDone(TypedDict, closed=True):
    type: Literal["transcript.text.done"]
    text: str
    usage: DurationUsage
