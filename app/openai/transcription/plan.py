"""A sound's windows as prompts: one job for each in which something is heard."""

from collections.abc import Sequence

from msgspec.structs import replace

from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.media_reader import Origin, Sample
from app.dispatch.models.models import Model
from app.dispatch.models.speech import ENCODER_TOKENS, Speech, SpeechTask
from app.endpoints import TRANSCRIPTIONS
from app.errors import RequestError
from app.media.sound import Sound
from app.messages.job import Sampling
from app.messages.media import Media
from app.openai.plan import plan_of
from app.openai.transcription.request import TranslationRequest

_SURE = 100.0  # a bias with which only languages are left


def speech_plan(
    asking: Asking,
    body: TranslationRequest,
    model: Model,
    windows: Sequence[Sound],
    task: SpeechTask,
    language: str | None,
    *,
    streams: bool,
) -> GenerationPlan:
    """`windows`: those in which something is heard. Raises: RequestError."""
    speech = speech_model(model)
    times = body.tells_times
    context = _context(model, body.prompt)
    prompt = speech.prompt(task, language, times=times, context=context)
    sampling = Sampling(
        max_tokens=model.room(prompt, None, "prompt"),
        temperature=body.temperature or 0.0,
        logprobs=0 if body.form == "verbose_json" else None,
        logit_bias=speech.bias(times=times),
    )
    return _plan(asking, body, model, windows, prompt, sampling=sampling, whole=not streams)


def language_plan(asking: Asking, body: TranslationRequest, model: Model, window: Sound) -> GenerationPlan:
    """One token: the language that is heard."""
    speech = speech_model(model)
    bias = dict.fromkeys(speech.languages.values(), _SURE)
    sampling = Sampling(max_tokens=1, temperature=0.0, logit_bias=bias, special_tokens=True)
    return _plan(asking, body, model, [window], [*speech.start], sampling=sampling, whole=True)


def speech_model(model: Model) -> Speech:
    assert model.speech is not None, "find_model has looked at the task"
    return model.speech


def check_language(model: Model, task: SpeechTask, language: str | None) -> None:
    """Raises: RequestError for what the model doesn't know."""
    speech = speech_model(model)
    if task == "translate" and not speech.translates:
        raise RequestError(f"'model': {model.name} knows English only, and translates nothing.", param="model")
    if language is not None and language not in (speech.languages or ("en",)):
        languages = "English only ('en')" if not speech.languages else f"no language '{language}' (a code such as 'de')"
        raise RequestError(f"'language': {model.name} knows {languages}.", param="language")


def _context(model: Model, text: str | None) -> list[int]:
    """The end of what may have been said before: as Whisper does, half of what the decoder can take."""
    if not text or not text.strip():
        return []
    most = model.context_len // 2 - 1
    tokens = model.tokenizer.encode(f" {text.strip()}", add_special_tokens=False)
    if not speech_model(model).signs.isdisjoint(tokens):  # "<|translate|>" in a text would be an order
        raise RequestError("'prompt' has one of the model's own signs.", param="prompt")
    return tokens[-most:]


def _plan(
    asking: Asking,
    body: TranslationRequest,
    model: Model,
    windows: Sequence[Sound],
    prompt: list[int],
    sampling: Sampling,
    *,
    whole: bool,
) -> GenerationPlan:
    media = [Media("audio", one.sha256, (one.length,), 0, ENCODER_TOKENS) for one in windows]
    samples = {
        Origin("audio", url=one.sha256): Sample(medium, one.data) for one, medium in zip(windows, media, strict=True)
    }
    prompts, samplings = [prompt] * len(windows), [sampling] * len(windows)
    plan = plan_of(asking, body, TRANSCRIPTIONS.prefix, model, prompts, sampling=samplings, whole=whole)
    return replace(plan, media=[[one] for one in media], samples=samples)
