"""The file of a painting, made of its pixels."""

from typing import Any

from app.messages.job import Painting
from app.painters.pictures import encoded


def painted_file(painting: Painting, pixels: Any) -> bytes:
    """`pixels`: height × width × 3, of a video frames × height × width × 3, from 0 to 255."""
    if painting.frames:
        from app.painters.video_file import encoded_video  # it needs PyAV

        return encoded_video(pixels, painting.fps)
    height, width, _three = pixels.shape
    return encoded(width, height, pixels.tobytes(), painting.format, painting.quality)
