"""A process that decodes, one part after the other: `python -m app.media.decoder_process`, with a socket as its stdin.

A decoder in C that is given hostile bytes may hang, take all memory, crash or be taken over. Here it has no
environment, no files to write, and little memory and CPU time.
"""

import os
import resource
import socket
import sys
from collections.abc import Sequence

from app.media.data_url import base64_decoded
from app.media.decoder_protocol import Decoded, Job, NotDecoded, Shape, Window, receive_bytes, receive_job, send
from app.media.picture import Picture, decode_mask, decode_picture
from app.media.refused import Refused
from app.media.sound import Sound, decode_sound
from app.media.video import Video, decode_video


def main() -> None:
    """Ends when the other side does. The argument: bytes of memory."""
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with socket.socket(fileno=os.dup(0)) as connection:
        while True:
            try:
                _serve(connection)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return


def _serve(connection: socket.socket) -> None:
    job = receive_job(connection)
    data = receive_bytes(connection, job.size)
    _limit_cpu(job.cpu_s)
    try:
        found = _decoded(job, data)
    except Refused as exc:
        send(connection, NotDecoded(str(exc)))
        return
    except MemoryError:
        send(connection, NotDecoded("decoding it needs more memory than XYLEM_MEDIA_DECODE_BYTES"))
        return
    answer, bodies = _answer(found)
    send(connection, answer)
    for body in bodies:
        connection.sendall(body)


def _answer(found: Picture | Video | Sequence[Sound]) -> tuple[Decoded, list[bytes]]:
    if isinstance(found, Picture):
        return Decoded([_shape(found)], [], [len(found.rgb)]), [found.rgb]
    if isinstance(found, Video):
        bodies = [frame.picture.rgb for frame in found.frames]
        shapes = [_shape(frame.picture, frame.at_s) for frame in found.frames]
        return Decoded(shapes, [], [*map(len, bodies)], found.long_s), bodies
    bodies = [one.data for one in found]
    windows = [Window(one.start, one.length, one.sha256) for one in found]
    return Decoded([], windows, [*map(len, bodies)]), bodies


def _shape(picture: Picture, at_s: float = 0.0) -> Shape:
    return Shape(picture.height, picture.width, picture.sha256, at_s)


def _decoded(job: Job, data: bytes) -> Picture | Video | Sequence[Sound]:
    """Raises: Refused, MemoryError."""
    if job.base64:
        data = base64_decoded(data)
    match job.kind:
        case "image":
            return decode_picture(data, job.pixels)
        case "mask":
            return decode_mask(data, job.pixels)
        case "video":
            return decode_video(data, pixels=job.pixels, frames=job.frames, most_s=job.video_s)
        case "audio":
            return decode_sound(data, most_s=job.sound_s, window_s=job.window_s)


def _limit_cpu(seconds: int) -> None:
    """From now on; the kernel ends the process then. Whole seconds are counted from its beginning."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))


if __name__ == "__main__":
    main()
