"""Messages to a decoder process, and its answers."""

import msgspec
from msgspec import Struct

from app.media.source import SourceKind


class Job(Struct, frozen=True, array_like=True):
    """Decodes the data behind it: pictures to RGB, sound to `sound.RATE` samples a second."""

    kind: SourceKind
    base64: bool
    pixels: int
    frames: int
    video_s: float
    sound_s: float = 0.0
    window_s: float = 0.0  # sound is cut into windows of at most so much; 0: it stays whole


class Shape(Struct, frozen=True, array_like=True):
    """A picture, whose pixels are behind the Decoded."""

    height: int
    width: int
    sha256: str
    at_s: float = 0.0  # of a video's frame: from the beginning


class Window(Struct, frozen=True, array_like=True):
    start: int  # samples, from the sound's beginning
    length: int  # samples
    sha256: str  # "": it is silent, and has no body


class Decoded(Struct, frozen=True, array_like=True, tag=True):
    """The bodies of these are behind it."""

    pictures: list[Shape]
    windows: list[Window]  # of a sound
    long_s: float = 0.0  # of a video


class NotDecoded(Struct, frozen=True, array_like=True, tag=True):
    reason: str


decode_job = msgspec.msgpack.Decoder(Job).decode
decode_answer = msgspec.msgpack.Decoder(Decoded | NotDecoded).decode
encode = msgspec.msgpack.Encoder().encode
