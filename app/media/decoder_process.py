"""A process that decodes, one part after the other (`app/bounded/serving.py`).

A decoder in C that is given hostile bytes may hang, take all memory, crash or be taken over. Here it has no
environment, no files to write, and little memory and CPU time.
"""

from collections.abc import Sequence

from app.bounded.serving import serve
from app.bounded.wire import Answer
from app.media.data_url import base64_decoded
from app.media.decoder_protocol import Decoded, Job, NotDecoded, Shape, Window, decode_job, encode
from app.media.picture import Picture, decode_mask, decode_picture
from app.media.refused import Refused
from app.media.sound import Sound, decode_sound
from app.media.video import Video, decode_video


def _work(job: bytes, data: bytes) -> Answer:
    try:
        answer, bodies = _answer(_decoded(decode_job(job), data))
    except Refused as exc:
        return encode(NotDecoded(str(exc))), []
    except MemoryError:
        return encode(NotDecoded("decoding it needs more memory than XYLEM_MEDIA_DECODE_BYTES")), []
    return encode(answer), bodies


def _answer(result: Picture | Video | Sequence[Sound]) -> tuple[Decoded, list[bytes]]:
    if isinstance(result, Picture):
        return Decoded([_shape(result)], []), [result.rgb]
    if isinstance(result, Video):
        bodies = [frame.picture.rgb for frame in result.frames]
        shapes = [_shape(frame.picture, frame.at_s) for frame in result.frames]
        return Decoded(shapes, [], result.long_s), bodies
    bodies = [one.data for one in result]
    windows = [Window(one.start, one.length, one.sha256) for one in result]
    return Decoded([], windows), bodies


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


if __name__ == "__main__":
    serve(_work)
