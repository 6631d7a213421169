"""A transcript in the formats that may be asked for. Pure."""

import math
import zlib
from collections.abc import Sequence

from msgspec import Struct

from app.dispatch.models.speech import LANGUAGES, SpeechTask
from app.openai.transcription.answer_types import DurationUsage, Transcription, TranscriptionSegment
from app.openai.transcription.request import Format
from app.openai.transcription.segments import Segment


class Transcript(Struct, frozen=True):
    task: SpeechTask
    language: str  # ISO 639-1
    seconds: float  # of the sound
    temperature: float
    text: str
    segments: Sequence[Segment]  # none where no times were asked for

    def usage(self) -> DurationUsage:
        return {"type": "duration", "seconds": math.ceil(self.seconds)}


def media_type(form: Format) -> str:
    return {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}.get(form, "application/json")


def as_text(transcript: Transcript, form: Format) -> str:
    """`form`: one of those that are no JSON."""
    if form == "text":
        return f"{transcript.text}\n"
    if form == "srt":
        blocks = (
            f"{number}\n{_clock(one.start, ',')} --> {_clock(one.end, ',')}\n{_cue(one.text)}\n"
            for number, one in enumerate(transcript.segments, 1)
        )
        return "\n".join(blocks)
    cues = (
        f"\n{_clock(one.start, '.')} --> {_clock(one.end, '.')}\n{_escaped(_cue(one.text))}\n"
        for one in transcript.segments
    )
    return "WEBVTT\n" + "".join(cues)


def as_json(transcript: Transcript, form: Format) -> Transcription:
    if form == "json":
        return {"text": transcript.text, "usage": transcript.usage()}
    return {
        "task": transcript.task,
        "language": LANGUAGES.get(transcript.language, transcript.language),
        "duration": round(transcript.seconds, 3),
        "text": transcript.text,
        "segments": [_segment(number, one, transcript.temperature) for number, one in enumerate(transcript.segments)],
        "usage": transcript.usage(),
    }


def _segment(number: int, one: Segment, temperature: float) -> TranscriptionSegment:
    raw = one.text.encode()
    return {
        "id": number,
        "seek": round(one.start * 100),  # hundredths of a second
        "start": one.start,
        "end": one.end,
        "text": one.text,
        "tokens": one.tokens,
        "temperature": temperature,
        "avg_logprob": one.logprob,
        "compression_ratio": len(raw) / len(zlib.compress(raw)),
        "no_speech_prob": None,  # engines don't tell it
    }


def _clock(seconds: float, point: str) -> str:
    whole = round(seconds * 1000)
    minutes, rest = divmod(whole, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


def _cue(text: str) -> str:
    """The text on one line, and without what would begin the times."""
    return " ".join(text.split()).replace("-->", "->")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
