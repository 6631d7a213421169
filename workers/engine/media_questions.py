"""Questions of API replicas about media in prompts: one is answered at a time, and few wait."""

import asyncio

from app.engines.base import MediaExpander
from app.errors import RequestError, XylemError
from app.messages.commands import ExpandMedia, Reply
from app.messages.media import TENTHS, is_drawable
from app.runner.runner import Runner
from app.telemetry import logger

log = logger(__name__)

_MOST_WAITING = 64  # of 16 replicas: one that is refused fails a request
_MOST_NUMBER = 256  # media of a prompt with the one that is asked about


class MediaQuestions:
    def __init__(self, runner: Runner) -> None:
        self._runner, self._turn, self._waiting = runner, asyncio.Lock(), 0

    async def answered(self, question: ExpandMedia) -> Reply:
        worker = self._runner.worker
        if why := self._refused(question):
            return Reply(worker, done=False, reason=why)
        self._waiting += 1
        try:
            async with self._turn:
                return await self._expanded(question)
        finally:
            self._waiting -= 1

    def _refused(self, question: ExpandMedia) -> str:
        """The reason to refuse it, found without work; "": it is answered.

        Refuses also what no API replica asks, since this may take much memory.
        """
        settings, shape = self._runner.settings, question.shape
        if question.kind not in {sign.kind for sign in self._runner.info.signs}:
            return "this engine can't be asked about it"
        if self._waiting >= _MOST_WAITING:
            return "too many ask at once"
        if min(shape, default=0) < 1 or not 0 <= question.number < _MOST_NUMBER or not 0 <= question.of <= _MOST_NUMBER:
            return "there is no such medium"
        match question.kind, shape:
            case "image", (height, width):
                fits = height * width <= settings.media_pixels
            case "video", (frames, height, width, tenths):
                fits = frames * height * width <= settings.media_pixels
                fits = fits and frames <= settings.media_frames and tenths <= round(settings.media_video_s * TENTHS)
            case "audio", (samples,):
                fits = samples <= settings.media_sound_s * 16_000
            case _:
                fits = False
        return "" if fits and is_drawable(question.kind, shape) else "it is too large"

    async def _expanded(self, question: ExpandMedia) -> Reply:
        worker, engine = self._runner.worker, self._runner.engine
        if not isinstance(engine, MediaExpander):
            return Reply(worker, done=False, reason="this engine can't be asked")
        try:
            expansion = await engine.expansion(question.kind, question.shape, question.number, question.of)
            return Reply(worker, done=True, expansion=expansion)
        except RequestError as exc:
            return Reply(worker, done=False, reason=exc.message, refused=True)
        except XylemError as exc:
            log.error("media_not_expanded", kind=question.kind, shape=question.shape, error=exc.message)
            return Reply(worker, done=False, reason=exc.message)
