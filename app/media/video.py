"""Frames of a video. Runs in a decoder process. Needs the package `av` (FFmpeg), of the extra `video`."""

import hashlib
from collections.abc import Iterator
from io import BytesIO
from math import sqrt
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from app.media.picture import Picture, picture_of
from app.media.refused import Refused
from app.messages import TENTHS

if TYPE_CHECKING:
    from av.container import InputContainer

# By their first bytes. FFmpeg would guess among formats, some of which open other files and addresses.
_MP4, _MATROSKA = "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"
_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "libdav1d")


class Frame(Struct, frozen=True):
    at_s: float  # from the video's beginning
    picture: Picture


class Video(Struct, frozen=True):
    long_s: float
    frames: list[Frame]  # at least one

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape as `Media` has it. Raises: Refused."""
        first = self.frames[0].picture
        if any((one.picture.height, one.picture.width) != (first.height, first.width) for one in self.frames):
            raise Refused("its pictures change their size")
        return len(self.frames), first.height, first.width, max(1, round(self.long_s * TENTHS))

    @property
    def rgb(self) -> bytes:
        """A copy of all frames' pixels, one frame after the other."""
        return b"".join([one.picture.rgb for one in self.frames])

    @property
    def sha256(self) -> str:
        """The hash of kind, shape and frames. Raises: Refused."""
        digest = hashlib.sha256(f"video {' '.join(map(str, self.shape))}\n".encode())
        for one in self.frames:
            digest.update(one.picture.sha256.encode())
        return digest.hexdigest()


def container_of(data: bytes) -> str | None:
    """FFmpeg's name for the format; None: it is no video that is taken."""
    return _MP4 if data[4:8] == b"ftyp" else _MATROSKA if data[:4] == b"\x1a\x45\xdf\xa3" else None


def decode_video(data: bytes, *, pixels: int, frames: int, most_s: float) -> Video:
    """At most `frames`, at equal distances from the beginning on, scaled down so that they have at most `pixels`
    together. Raises: Refused."""
    try:
        import av
    except ImportError as exc:
        raise Refused("this server can't decode video (it has no package 'av')") from exc
    name = container_of(data)
    if name is None:
        raise Refused("it is no MP4 or WebM video")
    av.logging.set_level(None)
    try:
        with av.open(BytesIO(data), format=name.split(",")[0], options={"protocol_whitelist": ""}) as container:
            return _frames(container, pixels, frames, most_s)
    except MemoryError as exc:
        raise Refused("decoding it needs more memory than XYLEM_MEDIA_DECODE_BYTES") from exc
    except Refused:
        raise
    except Exception as exc:  # av raises its own errors, and ValueError, OverflowError and others on broken data
        raise Refused("it is a broken or incomplete video") from exc


def _frames(container: "InputContainer", pixels: int, frames: int, most_s: float) -> Video:
    import av

    if not container.streams.video:
        raise Refused("it has no pictures")
    stream = container.streams.video[0]
    codec = stream.codec_context
    if codec.codec.canonical_name not in _CODECS:
        raise Refused(f"its codec is none of {', '.join(_CODECS[:-1])}")
    if container.duration is None or container.duration <= 0:
        raise Refused("it doesn't say how long it is")
    long_s = container.duration / av.time_base
    if long_s > most_s:
        raise Refused(f"it is longer than {most_s:g} s (XYLEM_MEDIA_VIDEO_S)")
    _check(codec.width, codec.height, pixels)
    codec.thread_count = 1
    codec.options = {"max_pixels": str(pixels)}
    taken = [
        Frame(max(frame.time or 0.0, 0.0), _picture(frame, pixels, frames))
        for frame in _sampled(container, stream, long_s, frames, pixels)
    ]
    if not taken:
        raise Refused("it has no frame that can be decoded")
    return Video(long_s, taken)


def _sampled(container: "InputContainer", stream: Any, long_s: float, frames: int, pixels: int) -> Iterator[Any]:
    """The first frame at or after each of the times. Raises: Refused when frames are missing at the end."""
    wanted, last, gap = 0, 0.0, 0.0
    for frame in container.decode(stream):
        _check(frame.width, frame.height, pixels)
        if frame.time is not None:
            last, gap = frame.time, max(gap, frame.time - last)
        if frame.time is None or frame.time >= wanted * long_s / frames:
            yield frame
            wanted += 1
            while frame.time is not None and wanted < frames and wanted * long_s / frames <= frame.time:
                wanted += 1
        if wanted >= frames:
            return
    end = long_s if stream.duration is None else float(stream.duration * stream.time_base)
    # FFmpeg takes a WebM that is cut off as it is.
    if gap and last + 2 * gap < min(end, (frames - 1) * long_s / frames):
        raise Refused("it is a broken or incomplete video")


def _picture(frame: Any, pixels: int, frames: int) -> Picture:
    scale = min(1.0, sqrt(pixels / (frames * frame.width * frame.height)))
    width, height = (max(1, int(side * scale)) for side in (frame.width, frame.height))
    image = frame.to_image(width=width, height=height)
    return picture_of(height, width, image.tobytes())


def _check(width: int, height: int, pixels: int) -> None:
    if width * height > pixels:
        raise Refused(f"it has more than {pixels} pixels (XYLEM_MEDIA_PIXELS)")
