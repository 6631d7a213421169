"""Recognises a sound's text from its windows, by jobs that the caller begins."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from app.dispatch.answering.generation import Generation
from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model
from app.media.sound import Sound
from app.openai.transcription.plan import language_plan, speech_model, speech_plan
from app.openai.transcription.request import TranscriptionRequest, TranslationRequest
from app.openai.transcription.writer import TranscriptionWriter

Begin = Callable[[GenerationPlan], Awaitable[Generation]]


async def spoken_language(
    asking: Asking, body: TranslationRequest, model: Model, sounds: Sequence[Sound], begin: Begin
) -> str | None:
    """The language of the first words; None for a model that knows only one, or if nothing is said.

    `sounds`: the windows that are not silent. Raises: XylemError.
    """
    languages = speech_model(model).languages
    if not languages or not sounds:
        return None
    async with await begin(language_plan(replace(asking, explain=False), body, model, sounds[0])) as call:
        tokens = [token for _, delta in await call.whole() for token in delta.tokens]
    return next((code for code, token in languages.items() if token in tokens), "en")


async def recognised(asking: Asking, model: Model, windows: Sequence[Sound], begin: Begin) -> str:
    """The text of a sound that is part of another request; "" if it is silent. Raises: XylemError."""
    audible = [one for one in windows if one.data]
    if not audible:
        return ""
    body = TranscriptionRequest(model=model.name)
    language = await spoken_language(asking, body, model, audible, begin)
    plan = speech_plan(asking, body, model, audible, "transcribe", language=language, streams=False)
    async with await begin(plan) as call:
        transcript = await TranscriptionWriter(call, body, "transcribe", language or "en", windows).collected()
    return transcript.text
