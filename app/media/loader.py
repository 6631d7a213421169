"""Loads the parts of a request: makes pixels of them, within the bounds. One for an API process."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence, Sized
from contextlib import asynccontextmanager, contextmanager

from app.bounded.held_bytes import HeldBytes
from app.errors import RequestError
from app.media.data_url import base64_in
from app.media.decoder_pool import DecoderPool
from app.media.fetch import Fetcher, Resolve, resolve
from app.media.limits import MediaLimits
from app.media.local_file import path_in, read_file
from app.media.picture import Picture
from app.media.refused import Refused, too_large
from app.media.sound import Sound
from app.media.source import MediaSource
from app.media.video import Video
from app.running.ending import side_by_side
from app.telemetry import MEDIA


class MediaLoader:
    """The loader of one event loop.

    `fetched`: of all parts of a request, as `all_of` makes it; None: it has one part. No part is decoded before all are
    fetched: it may take a hundred times as much then, and waits for the slowest one.
    """

    def __init__(self, limits: MediaLimits, *, resolve: Resolve = resolve, tls: ssl.SSLContext | None = None) -> None:
        self._limits = limits
        self._fetcher = Fetcher(limits, resolve, tls)
        self._decoders = DecoderPool(limits)
        self._waiting = HeldBytes(limits.waiting)  # as they are sent

    async def load_pictures(self, sources: Sequence[MediaSource]) -> list[Picture]:
        """All pictures of a request, side by side. Raises: RequestError about the first that fails, Saturated."""
        self.check_count(sources)
        barrier = all_of(sources)
        return await side_by_side(self.load_picture(source, barrier) for source in sources)

    async def load(self, source: MediaSource, barrier: asyncio.Barrier | None = None) -> Picture | Video | Sound:
        """The picture, video or sound, as the part's kind says. Raises: as `load_picture`."""
        if source.kind == "video":
            return await self.load_video(source, barrier)
        load = self.load_sound if source.kind == "audio" else self.load_picture
        return await load(source, barrier)

    async def load_picture(self, source: MediaSource, barrier: asyncio.Barrier | None = None) -> Picture:
        """Raises: RequestError, whose `param` is the part's; Saturated."""
        async with self._content(source, barrier) as (pieces, is_base64):
            return await self._decoders.picture(source.kind, pieces, base64=is_base64)

    async def load_video(self, source: MediaSource, barrier: asyncio.Barrier | None = None) -> Video:
        """Frames at equal distances, in order. Raises: RequestError, whose `param` is the part's; Saturated."""
        async with self._content(source, barrier) as (pieces, is_base64):
            return await self._decoders.video(pieces, base64=is_base64)

    async def load_sound(self, source: MediaSource, barrier: asyncio.Barrier | None = None) -> Sound:
        """Raises: RequestError, whose `param` is the part's; Saturated."""
        async with self._content(source, barrier) as (pieces, is_base64):
            (sound,) = await self._decoders.sounds(pieces, base64=is_base64)
            return sound

    async def load_recording(self, data: bytes, param: str, window_s: float) -> list[Sound]:
        """An uploaded sound, in windows of at most so many seconds that end where it is quiet.

        Raises: RequestError about `param`.
        """
        with _named(MediaSource("audio", param, data=data)), MEDIA.labels("audio").time():
            if len(data) > self._limits.sound_size:
                raise too_large(self._limits.sound_size, "XYLEM_MEDIA_SOUND_BYTES")
            return await self._decoders.sounds([data], window_s=window_s)

    async def load_windows(self, source: MediaSource, window_s: float, barrier: asyncio.Barrier) -> list[Sound]:
        """A sound within a request, cut as `load_recording` does. Raises as `load_sound`."""
        async with self._content(source, barrier) as (pieces, is_base64):
            return await self._decoders.sounds(pieces, base64=is_base64, window_s=window_s)

    def check_count(self, sources: Sequence[MediaSource]) -> None:
        """Raises: RequestError about the first part that is one too many."""
        most = self._limits.count
        if len(sources) > most:
            with _named(sources[most]):
                raise Refused(f"a request has at most {most} pictures, sounds and videos (XYLEM_MEDIA_COUNT)")

    async def close(self) -> None:
        self._fetcher.close()
        await asyncio.to_thread(self._decoders.close)

    @asynccontextmanager
    async def _content(
        self, source: MediaSource, barrier: asyncio.Barrier | None
    ) -> AsyncIterator[tuple[Sequence[bytes], bool]]:
        """The content as from `_fetched`, while it is decoded, which may have to wait.

        Raises: RequestError, Saturated.
        """
        with _named(source), MEDIA.labels(source.kind).time():
            pieces, is_base64 = await self._fetched(source)
            with self._waiting.room(sum(map(len, pieces))):
                if barrier is not None:
                    await barrier.wait()
                yield pieces, is_base64

    async def _fetched(self, source: MediaSource) -> tuple[Sequence[bytes], bool]:
        """The content in pieces, and whether it is still in base64. Raises: Refused, Saturated."""
        limits, url = self._limits, source.url
        if source.data is not None:
            if len(source.data) > limits.size:
                raise too_large(limits.size)
            return [source.data], False
        if source.path is not None:
            return [await asyncio.to_thread(read_file, source.path, limits.folder, limits.size)], False
        assert url is not None
        scheme = url[:5].lower()
        if scheme == "data:":
            return [base64_in(url, source.kind, limits.size)], True
        if scheme == "file:":
            return [await asyncio.to_thread(read_file, path_in(url), limits.folder, limits.size)], False
        return await self._fetcher.fetch(url), False


def all_of(parts: Sized) -> asyncio.Barrier:
    """A barrier for parts of a request that are loaded side by side, of which the first that fails ends the others."""
    return asyncio.Barrier(max(1, len(parts)))


@contextmanager
def _named(source: MediaSource) -> Iterator[None]:
    """The one place where a reason becomes an error of the API."""
    try:
        yield
    except Refused as exc:
        raise RequestError(f"The {source.kind} in {source.param!r} is refused: {exc}.", param=source.param) from exc
