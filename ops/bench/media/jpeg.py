"""Pictures as parts of messages."""

import base64
import io
from random import Random
from typing import Any

from PIL import Image


def picture(number: int, side: int) -> dict[str, Any]:
    """A new one for each number. Its colours are soft, as of a photo out of focus, and compress as photos do."""
    small = Image.frombytes("RGB", (16, 16), Random(number).randbytes(3 * 16 * 16))
    out = io.BytesIO()
    small.resize((side, side), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    url = f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
