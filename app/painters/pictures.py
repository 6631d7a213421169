"""Files of pictures, made of pixels: the same pixels give the same bytes."""

import io

from app.messages.kinds import PictureFormat


def encoded(width: int, height: int, rgb: bytes, format_: PictureFormat, quality: int) -> bytes:
    """`rgb`: height × width × 3 bytes, row by row. `quality`: percent, of jpeg and webp."""
    from PIL import Image

    file = io.BytesIO()
    how = {} if format_ == "png" else {"quality": quality}
    Image.frombytes("RGB", (width, height), rgb).save(file, format_.upper(), **how)
    return file.getvalue()
