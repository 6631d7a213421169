"""What a decoder process is asked, and answers: a length in four bytes, msgpack, and bytes behind it."""

import socket
import struct

import msgspec
from msgspec import Struct

from app.media.source import SourceKind

_LENGTH = struct.Struct("!I")


class Job(Struct, frozen=True, array_like=True):
    """Decodes the `size` bytes behind it: pictures to RGB, sound to `sound.RATE` samples a second."""

    kind: SourceKind
    size: int
    base64: bool
    pixels: int
    frames: int
    video_s: float
    cpu_s: int
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
    sizes: list[int]  # bytes of each body
    long_s: float = 0.0  # of a video


class NotDecoded(Struct, frozen=True, array_like=True, tag=True):
    reason: str


def send(connection: socket.socket, message: Struct) -> None:
    raw = msgspec.msgpack.encode(message)
    connection.sendall(_LENGTH.pack(len(raw)) + raw)


def receive_job(connection: socket.socket) -> Job:
    """Raises: EOFError if the other side is gone."""
    return msgspec.msgpack.decode(_message(connection), type=Job)


def receive_answer(connection: socket.socket) -> Decoded | NotDecoded:
    """Raises: EOFError if the other side is gone."""
    return msgspec.msgpack.decode(_message(connection), type=Decoded | NotDecoded)


def receive_bytes(connection: socket.socket, size: int) -> bytes:
    """In one piece, which the kernel fills while the interpreter does other work. Raises: EOFError."""
    found = connection.recv(size, socket.MSG_WAITALL) if size else b""
    if len(found) != size:
        raise EOFError
    return found


def _message(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(receive_bytes(connection, _LENGTH.size))
    return receive_bytes(connection, length)
