"""Pictures and videos, whole and made to break decoders."""

import struct
import zlib
from io import BytesIO
from typing import Any

from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def picture(form: str = "PNG", size: tuple[int, int] = (40, 30), mode: str = "RGB", **options: Any) -> bytes:
    """Left half red, right half blue (width, height)."""
    image = Image.new("RGB", size, (255, 0, 0))
    image.paste((0, 0, 255), (size[0] // 2, 0, *size))
    file = BytesIO()
    image.convert(mode).save(file, form, **options)
    return file.getvalue()


def photo(width: int = 2000, height: int = 2000, form: str = "JPEG") -> bytes:
    """4 megapixels with detail everywhere, as a camera's."""
    noise = Image.effect_noise((width // 8, height // 8), 80).resize((width, height), Image.Resampling.BICUBIC)
    file = BytesIO()
    Image.merge("RGB", (noise, noise.rotate(90), noise.rotate(180))).save(file, form, quality=90)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *before: bytes, rows: int = 1, bits: int = 8) -> bytes:
    """A PNG with that size in its header, those chunks, and so many grey rows."""
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join([b"\0" + b"\x80" * (width * bits // 8)] * rows), 9) if rows else b""
    return SIGNATURE + chunk(b"IHDR", header) + b"".join(before) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def webp_of_size(width: int, height: int) -> bytes:
    """A small WebP whose canvas is declared to be that large."""
    small = picture("WEBP", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0")
    at = small.index(b"VP8X") + 12
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return small[:at] + size + small[at + 6 :]


def gif_of_size(before: bytes, width: int, height: int) -> bytes:
    """A small GIF that declares another size behind these bytes: the canvas', or its frame's."""
    small = picture("GIF")
    at = small.index(before) + len(before)
    return small[:at] + struct.pack("<HH", width, height) + small[at + 4 :]


def jpeg_of_size(width: int, height: int) -> bytes:
    small = picture("JPEG")
    at = small.index(b"\xff\xc0") + 5
    return small[:at] + struct.pack(">HH", height, width) + small[at + 4 :]


def video(*, frames: int = 30, fps: int = 10, size: tuple[int, int] = (64, 48), form: str = "mp4") -> bytes:
    """Grey, brighter by 8 with each frame."""
    import av

    file = BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream("libx264" if form == "mp4" else "libvpx", rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for index in range(frames):
            frame = av.VideoFrame.from_image(Image.new("RGB", size, (min(8 * index, 255),) * 3))
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()
