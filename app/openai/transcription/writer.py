"""Puts the windows' answers together, in order, while they come."""

from collections.abc import Sequence

import orjson

from app.dispatch.generation_base import GenerationBase
from app.dispatch.models.speech import SpeechTask
from app.media.sound import RATE, Sound
from app.messages.events import Delta
from app.openai.transcription.answer_types import TextDelta, TextDone, Transcription
from app.openai.transcription.formats import Transcript, as_json
from app.openai.transcription.plan import speech_model
from app.openai.transcription.request import TranslationRequest
from app.openai.transcription.segments import Segment, segments


class _Window:
    """Output that one job has sent."""

    __slots__ = ("finished", "logprobs", "pending", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.pending: list[str] = []  # text that is not joined yet
        self.finished = False


class TranscriptionWriter:
    """Implements `endpoint_registry.StreamWriter`."""

    def __init__(
        self,
        call: GenerationBase,
        body: TranslationRequest,
        task: SpeechTask,
        language: str,
        windows: Sequence[Sound],
    ) -> None:
        """`windows`: all of the sound; jobs are of those that are not silent."""
        self._call, self._body, self._task, self._language = call, body, task, language
        self._seconds = (windows[-1].start + windows[-1].length) / RATE
        self._heard = [one for one in windows if one.data]
        self._windows = [_Window() for _ in self._heard]
        self._current = 0  # the first window that is not finished
        self._text = ""
        self._fresh = True  # whether the current window has shown nothing yet

    async def whole(self) -> Transcription:
        """The answer in JSON. Raises: the error that ended it."""
        return as_json(await self.collected(), self._body.form)

    async def collected(self) -> Transcript:
        """The transcript of an answer that is not streamed. Raises: the error that ended it."""
        for choice, d in await self._call.whole():
            self.delta(choice, d)
        return self.transcript()

    def opening(self, _choices: int) -> bytes:
        return b""

    def delta(self, choice: int, d: Delta) -> bytes:
        """The event of text that can be shown now: nothing while an earlier window is not finished."""
        window = self._windows[choice]
        window.tokens += d.tokens
        window.logprobs += [one.logprob for one in d.logprobs or ()]
        if d.text:
            window.pending.append(d.text)
        window.finished |= d.finish is not None
        text = self._advance() if choice == self._current else ""
        return _event({"type": "transcript.text.delta", "delta": text}) if text else b""

    async def settle(self) -> None:
        """Nothing to wait for."""

    def last(self) -> bytes:
        return done_event(self.transcript())

    def transcript(self) -> Transcript:
        """The transcript, after the last delta."""
        temperature = self._body.temperature or 0.0
        if not self._body.tells_times:
            text, all_segments = self._text, []
        else:
            all_segments = [one for number in range(len(self._heard)) for one in self._segments(number)]
            text = ""
            for one in all_segments:
                text += _joined(text, one.text)
        return Transcript(self._task, self._language, self._seconds, temperature, text.rstrip(), segments=all_segments)

    def _advance(self) -> str:
        """Joins what can be joined."""
        text = ""
        while self._current < len(self._windows):
            window = self._windows[self._current]
            new = "".join(window.pending)
            window.pending.clear()
            if new:
                # Tokens within a window come with their own spaces; windows may not.
                text += _joined(self._text + text, new) if self._fresh else new
                self._fresh = False
            if not window.finished:
                break
            self._current, self._fresh = self._current + 1, True
        self._text += text
        return text

    def _segments(self, number: int) -> list[Segment]:
        window, sound, model = self._windows[number], self._heard[number], self._call.model
        end = model.tokenizer.eos_id
        indices = [index for index, token in enumerate(window.tokens) if token != end]
        return segments(
            [window.tokens[index] for index in indices],
            [window.logprobs[index] for index in indices] if window.logprobs else [],
            speech_model(model),
            model.tokenizer.decode,
            sound.start / RATE,
            length_s=sound.length / RATE,
        )


def _joined(before: str, text: str) -> str:
    """The text as it follows `before`: with one space between, and none at the beginning."""
    text = text.lstrip()
    return f" {text}" if before and text else text


def done_event(transcript: Transcript) -> bytes:
    """The last event."""
    return _event({"type": "transcript.text.done", "text": transcript.text, "usage": transcript.usage()})


def _event(content: TextDelta | TextDone) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"
