"""A video's file, made of its frames."""

import io
from typing import Any

import av


def encoded_video(frames: Any, fps: int) -> bytes:
    """`frames`: frames × height × width × 3, from 0 to 255. H.264 in an MP4 file, the same for the same frames."""
    _count, height, width, _three = frames.shape
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", fps, options={"crf": "18", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()
