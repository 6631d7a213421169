"""Pictures of one colour, and the messages that show them."""

import base64
import io
from typing import Any

from PIL import Image


def png(seed: int, width: int = 120, height: int = 90) -> bytes:
    """A picture of one colour, of which each seed has another."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), (seed, 255 - seed, 7)).save(out, "PNG")
    return out.getvalue()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def asked(*pictures: bytes, text: str = "What is this?") -> list[Any]:
    """The messages of a chat with these pictures."""
    parts = [{"type": "image_url", "image_url": {"url": url(data), "detail": "auto"}} for data in pictures]
    return [{"role": "user", "content": [{"type": "text", "text": text}, *parts]}]
