"""Frames of a video. Runs in a decoder process. Needs the package `av` (FFmpeg), of the extra `video`."""

import hashlib
import math
import struct
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from PIL import Image

from app.media.picture import Picture, picture_of
from app.media.refused import Refused
from app.messages.media import TENTHS

if TYPE_CHECKING:
    from av.container import InputContainer

# By their first bytes. FFmpeg would guess among formats, some of which open other files and addresses.
_MP4, _MATROSKA = "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"
_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "libdav1d")
_TURNS = {  # by a, b, c, d of the matrix, in Pillow's words, which turns against the clock
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
}
_ONE = 2**16  # such a number is a count of these parts
_BOX = 8  # bytes of the smallest part of an MP4
_BROKEN, _EMPTY = "it is a broken or incomplete video", "it has no frame that can be decoded"
_SEGMENT = b"\x18\x53\x80\x67"  # what holds all the rest of a Matroska file


class Frame(Struct, frozen=True):
    at_s: float  # from the first picture
    picture: Picture


class Video(Struct, frozen=True):
    long_s: float  # the pictures; sound may be longer
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


class _Timeline(Struct, frozen=True):
    """The times when the pictures are shown, in ticks of their stream."""

    shown: list[int]  # the beginning of each one, in order
    end: int
    keys: list[int]  # of those from which decoding may begin, in order

    def wanted(self, frames: int) -> list[int]:
        """The first beginning at or after each of the times, which have equal distances; after the last one that."""
        first, length = self.shown[0], self.end - self.shown[0]
        times = [first + math.ceil(number * length / frames) for number in range(frames)]
        return [self.shown[min(bisect_left(self.shown, time), len(self.shown) - 1)] for time in times]


def decode_video(data: bytes, *, pixels: int, frames: int, most_s: float) -> Video:
    """Decodes at most `frames`, at equal distances from the first picture on, as they are shown: turned.

    They are scaled down so that they have at most `pixels` together. Raises: Refused.
    """
    try:
        import av
    except ImportError as exc:
        raise Refused("this server can't decode video (it has no package 'av')") from exc
    name = container_of(data)
    if name is None:
        raise Refused("it is no MP4 or WebM video")
    av.logging.set_level(None)
    try:
        if _is_cut_off(data):
            raise Refused(_BROKEN)
        with _opened(data, name) as container:
            timeline = _timeline(container, _stream(container, pixels), most_s)
        # Opened anew instead of rewound: what needs no seeking is decoded also where the file's index is bad.
        with _opened(data, name) as container:
            return _video(container, timeline, pixels, frames)
    except MemoryError as exc:
        raise Refused("decoding it needs more memory than XYLEM_MEDIA_DECODE_BYTES") from exc
    except Refused:
        raise
    except Exception as exc:  # av raises its own errors, and ValueError, OverflowError and others on broken data
        raise Refused(_BROKEN) from exc


def _is_cut_off(data: bytes) -> bool:
    """Whether it says that it is longer: FFmpeg takes what is left."""
    if container_of(data) == _MATROSKA:
        at = data.find(_SEGMENT) + len(_SEGMENT)
        digits = 9 - data[at].bit_length()  # of base 128
        unknown = (1 << 7 * digits) - 1
        size = int.from_bytes(data[at : at + digits]) & unknown
        return size != unknown and at + digits + size > len(data)
    at, kind = 0, b""
    while at + 16 <= len(data):
        size, kind, large = struct.unpack_from(">I4sQ", data, at)
        size = large if size == 1 else size
        if size < _BOX:  # 0: it goes on to the end
            return False
        at += size
    return at > len(data) and kind in (b"moov", b"moof", b"mdat")  # something else may hang on to a whole video


def _opened(data: bytes, name: str) -> "InputContainer":
    import av

    form = name.split(",", maxsplit=1)[0]
    container: InputContainer = av.open(BytesIO(data), format=form, options={"protocol_whitelist": ""})
    return container


def _stream(container: "InputContainer", pixels: int) -> Any:
    """The first stream of pictures. Raises: Refused."""
    if not container.streams.video:
        raise Refused("it has no pictures")
    stream = container.streams.video[0]
    codec = stream.codec_context
    if codec.codec.canonical_name not in _CODECS:
        raise Refused(f"its codec is none of {', '.join(_CODECS[:-1])}")
    _check(codec.width, codec.height, pixels)
    codec.thread_count = 1
    codec.options = {"max_pixels": str(pixels)}
    codec.open(strict=False)  # before any frame is to be skipped: AV1's decoder would never take another one
    return stream


def _timeline(container: "InputContainer", stream: Any, most_s: float) -> _Timeline:
    """Reads it from the packets, none of which is decoded: not every file says it elsewhere. Raises: Refused."""
    starts, keys = list[int](), list[int]()
    first, end = sys.maxsize, -sys.maxsize
    for packet in container.demux(stream):
        at = _ticks(packet)
        if at is None:  # the last packet, which is empty
            continue
        if packet.is_keyframe:
            keys.append(at)
        if not packet.is_discard:  # which an edit list says
            starts.append(at)
            first, end = min(first, at), max(end, at + (packet.duration or 0))
            if float((end - first) * stream.time_base) > most_s:  # of a longer one no more is read
                raise Refused(f"it is longer than {most_s:g} s (XYLEM_MEDIA_VIDEO_S)")
    if not starts:
        raise Refused(_EMPTY)
    return _Timeline(sorted(starts), end, sorted(keys))


def _video(container: "InputContainer", timeline: _Timeline, pixels: int, frames: int) -> Video:
    """Raises: Refused."""
    stream = _stream(container, pixels)
    first, tick = timeline.shown[0], float(stream.time_base)
    long_s = (timeline.end - first) * tick
    sampler = _Sampler(container, stream, timeline, pixels)
    sampled_frames = [
        Frame(max(at - first, 0) * tick, _picture(frame, pixels, frames))
        for at, frame in sampler.frames(timeline.wanted(frames))
    ]
    if not sampled_frames:
        raise Refused(_EMPTY)
    return Video(long_s, sampled_frames)


class _Sampler:
    """Decodes no more than the wanted frames need: from the key frame before each one on, and up to it only what other
    frames refer to."""

    def __init__(self, container: "InputContainer", stream: Any, timeline: _Timeline, pixels: int) -> None:
        self._container, self._stream, self._pixels = container, stream, pixels
        self._keys = timeline.keys
        self._wanted = self._at = timeline.shown[0]
        self._frame: Any = None  # the last one decoded, which is shown at `_at`
        self._key, self._whole = -1, False  # the frame that was sought, and whether it came and is a key frame
        self._decoding = self._decoded()

    def frames(self, indices: list[int]) -> Iterator[tuple[int, Any]]:
        """The frames that are shown at these times, each once, with the time. Raises: Refused."""
        for time in indices:
            before = self._frame
            if before is None or self._at < time:
                self._reach(time)
                if self._frame is not before:
                    yield self._at, self._frame

    def _reach(self, time: int) -> None:
        """Raises: Refused."""
        index = bisect_right(self._keys, time) - 1
        if index > 0 and self._keys[index] > self._at:
            self._seek(self._keys[index])
            with suppress(ValueError):  # of which av's InvalidDataError is one
                self._decode(time)
            if self._whole and self._at == time:
                return
            # Some files call frames key frames that aren't, or behind which pictures come bit by bit.
            self._seek(self._keys[0])
            self._keys = []
        self._decode(time)

    def _seek(self, key: int) -> None:
        self._container.seek(key, stream=self._stream)
        self._decoding, self._key, self._whole = self._decoded(), key, False

    def _decode(self, time: int) -> None:
        """Raises: Refused."""
        self._wanted = time
        for frame in self._decoding:
            _check(frame.width, frame.height, self._pixels)
            at = _ticks(frame)
            self._frame, self._at = frame, self._at if at is None else at
            self._whole = self._whole or (frame.key_frame and self._at == self._key)
            if self._at >= time:
                return

    def _decoded(self) -> Iterator[Any]:
        for packet in self._container.demux(self._stream):
            at = _ticks(packet)
            self._stream.codec_context.skip_frame = "DEFAULT" if at is None or at >= self._wanted else "NONREF"
            yield from packet.decode()


def _ticks(frame: Any) -> int | None:
    """The time when a packet or a frame is shown. Some files have only times of decoding."""
    at: int | None = frame.dts if frame.pts is None else frame.pts
    return at


def _picture(frame: Any, pixels: int, frames: int) -> Picture:
    scale = min(1.0, math.sqrt(pixels / (frames * frame.width * frame.height)))
    width, height = (max(1, int(side * scale)) for side in (frame.width, frame.height))
    image = frame.to_image(width=width, height=height, threads=1)
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is not None:
        a, b, _, c, d = (round(number / _ONE) for number in struct.unpack_from("=5i", matrix))
        if (a, b, c, d) in _TURNS:
            image = image.transpose(_TURNS[a, b, c, d])
    return picture_of(image.height, image.width, image.tobytes())


def _check(width: int, height: int, pixels: int) -> None:
    if width * height > pixels:
        raise Refused(f"it has more than {pixels} pixels (XYLEM_MEDIA_PIXELS)")
