"""Media, decoded in processes of their own (`app/bounded/`). Decision 0043 has the figures."""

from collections.abc import Sequence

from app.bounded.pool import PROCESSES, ProcessEnded, ProcessPool
from app.media.decoder_protocol import Decoded, Job, NotDecoded, Shape, decode_answer, encode
from app.media.limits import MediaLimits
from app.media.picture import Picture
from app.media.refused import Refused
from app.media.sound import Sound
from app.media.source import SourceKind
from app.media.video import Frame, Video
from app.telemetry import logger

log = logger(__name__)


class DecoderPool:
    """Raises, in all that it decodes: Refused, Saturated, NoProcess."""

    def __init__(self, limits: MediaLimits, processes: int = PROCESSES) -> None:
        self._limits = limits
        self._pool = ProcessPool("app.media.decoder_process", memory=limits.decode_bytes, processes=processes)

    async def picture(self, kind: SourceKind, pieces: Sequence[bytes], *, base64: bool = False) -> Picture:
        """`kind`: a picture or a mask."""
        answer, bodies = await self._run(kind, pieces, base64)
        return _picture(answer.pictures[0], bodies[0])

    async def video(self, pieces: Sequence[bytes], *, base64: bool = False) -> Video:
        answer, bodies = await self._run("video", pieces, base64)
        shapes = zip(answer.pictures, bodies, strict=True)
        return Video(answer.long_s, [Frame(shape.at_s, _picture(shape, body)) for shape, body in shapes])

    async def sounds(self, pieces: Sequence[bytes], *, base64: bool = False, window_s: float = 0.0) -> list[Sound]:
        """A sound whole, or in windows of at most so many seconds."""
        answer, bodies = await self._run("audio", pieces, base64, window_s)
        return [
            Sound(window.start, window.length, body, window.sha256)
            for window, body in zip(answer.windows, bodies, strict=True)
        ]

    def close(self) -> None:
        """Ends the processes, also those at work. Blocks."""
        self._pool.close()

    async def _run(
        self, kind: SourceKind, pieces: Sequence[bytes], base64: bool, window_s: float = 0.0
    ) -> tuple[Decoded, list[bytes]]:
        limits = self._limits
        cpu_s = limits.sound_decode_s if kind == "audio" else limits.decode_s
        job = Job(kind, base64, limits.pixels, limits.frames, limits.video_s, sound_s=limits.sound_s, window_s=window_s)
        try:
            message, bodies = await self._pool.run(encode(job), pieces, cpu_s=cpu_s)
        except ProcessEnded as exc:
            if exc.took_too_long:
                setting = "XYLEM_MEDIA_SOUND_DECODE_S" if kind == "audio" else "XYLEM_MEDIA_DECODE_S"
                raise Refused(f"decoding it takes more than {cpu_s} s of CPU time ({setting})") from exc
            log.warning("media_decoder_ended", status=exc.status, kind=kind, size=sum(map(len, pieces)))
            raise Refused("its decoder failed on it") from exc
        answer = decode_answer(message)
        if isinstance(answer, NotDecoded):
            raise Refused(answer.reason)
        return answer, bodies


def _picture(shape: Shape, body: bytes) -> Picture:
    return Picture(shape.height, shape.width, body, shape.sha256)
