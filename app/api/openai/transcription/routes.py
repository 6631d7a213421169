"""POST /v1/audio/transcriptions and /v1/audio/translations: a sound, as a form."""

from dataclasses import replace

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.http.answered import answered
from app.api.http.sse import Sse
from app.api.intake.calls import placed_call
from app.api.intake.client_limits import check_priority
from app.api.openai.form import form_schema
from app.api.openai.multipart_upload import received_form
from app.api.openai.sse_response import EventStream
from app.api.state import asking_of, state_of
from app.dispatch.answering.generation import Generation
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.aliases import AliasTurn
from app.dispatch.models.models import Model
from app.dispatch.models.speech import WINDOW_S, SpeechTask
from app.endpoints import TRANSCRIPTIONS, TRANSLATIONS
from app.errors import RequestError
from app.media.sound import RATE
from app.messages.events import Delta
from app.openai.answer_types import Refusal
from app.openai.transcription.answer_types import TextDelta, TextDone, Transcription
from app.openai.transcription.formats import Transcript, as_json, as_text, media_type
from app.openai.transcription.plan import check_language, speech_plan
from app.openai.transcription.recognition import spoken_language
from app.openai.transcription.request import TranscriptionRequest, TranslationRequest, read_form
from app.openai.transcription.writer import TranscriptionWriter, done_event

router = APIRouter(tags=["audio"])
_TRANSCRIPT = answered(Transcription, TextDelta, TextDone, Refusal)
_FIELD = 16 * 2**10  # bytes of a field


@router.post(
    TRANSCRIPTIONS.path,
    openapi_extra=form_schema(TranscriptionRequest, "file"),
    responses=_TRANSCRIPT,
)
async def transcribe(request: Request) -> Response:
    """Transcribes what is said in a sound."""
    return await _handle(request, TranscriptionRequest, "transcribe")


@router.post(TRANSLATIONS.path, openapi_extra=form_schema(TranslationRequest, "file"), responses=_TRANSCRIPT)
async def translate(request: Request) -> Response:
    """Translates what is said in a sound into English."""
    return await _handle(request, TranslationRequest, "translate")


async def _handle(request: Request, schema: type[TranslationRequest], task: SpeechTask) -> Response:
    """Raises: XylemError."""
    state = state_of(request)
    asking = asking_of(state, request.scope)
    size = state.settings.media_sound_bytes
    async with received_form(request, size, RequestError, "XYLEM_MEDIA_SOUND_BYTES", _FIELD) as (file, fields):
        form = read_form(schema, fields)
        body = await asking.served(form, "transcriptions")
        check_priority(state, request.scope, body)
        model = asking.find_model(body.model, "transcribe")
        client_language = body.language if isinstance(body, TranscriptionRequest) else None
        check_language(model, task, client_language)
        data = await file.read()
    assert state.media is not None
    windows = await state.media.recording(data, "file", WINDOW_S)
    del data
    spoken_windows = [one for one in windows if one.data]

    async def begin(plan: GenerationPlan) -> Generation:
        return await placed_call(state, request.scope, request.receive, plan, None)

    language = client_language or await spoken_language(asking, body, model, spoken_windows, begin)
    streams = isinstance(body, TranscriptionRequest) and bool(body.stream)
    if not spoken_windows:
        seconds = (windows[-1].start + windows[-1].length) / RATE
        nothing = Transcript(task, language or "en", seconds, temperature=body.temperature or 0.0, text="", segments=[])
        return Response(done_event(nothing), media_type="text/event-stream") if streams else _whole(nothing, body)

    def planned(body: TranslationRequest, model: Model) -> GenerationPlan:
        return speech_plan(asking, body, model, spoken_windows, task, language=language, streams=streams)

    async def other() -> GenerationPlan:
        """The plan for another model of the alias that the request names."""
        other_body = await replace(asking, turn=AliasTurn(refused=model.name)).served(form, "transcriptions")
        another = asking.find_model(other_body.model, "transcribe")
        check_language(another, task, language)
        return planned(other_body, another)

    has_other = state.aliases.has_other(form.asked, model.name)
    plan = planned(body, model)
    call = await placed_call(state, request.scope, request.receive, plan, other if has_other else None)
    writer = TranscriptionWriter(call, body, task, language or "en", windows)
    if streams:
        return _Stream(call, writer)
    async with call:
        transcript = await writer.collected()
    return _whole(transcript, body, call)


def _whole(transcript: Transcript, body: TranslationRequest, call: Generation | None = None) -> Response:
    form, headers = body.form, {} if call is None else call.headers()
    if form in ("json", "verbose_json"):
        return Response(orjson.dumps(as_json(transcript, form)), headers=headers, media_type=media_type(form))
    return Response(as_text(transcript, form), headers=headers, media_type=media_type(form))


class _Stream(EventStream):
    """Windows come side by side, so that not every delta is an event: none is written directly."""

    def __init__(self, call: Generation, writer: TranscriptionWriter) -> None:
        async def begin() -> Generation:
            return call

        super().__init__(begin, lambda _call: writer)

    async def _write(self, deltas: list[tuple[int, Delta]], sse: Sse) -> None:
        call = self._call
        assert isinstance(call, Generation)
        while deltas:
            await sse.write(b"".join([self._chunk(choice, d) for choice, d in deltas]))
            deltas = await call.deltas()
        await sse.end(self._writer.last())
