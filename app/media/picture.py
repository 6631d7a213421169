"""Decodes a picture's bytes to pixels. Runs in a decoder process: what it is given may be made to break it."""

import hashlib
import warnings
from collections.abc import Callable
from io import BytesIO

from msgspec import Struct
from PIL import Image, UnidentifiedImageError

from app.media.refused import Refused

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
_ORIENTATION = 0x0112  # in EXIF
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)


class Picture(Struct, frozen=True):
    height: int  # pixels, as it is shown: the EXIF orientation is applied
    width: int
    rgb: bytes  # height × width × 3, row by row
    sha256: str  # of the kind, the shape and `rgb`: the same picture by URL, data or file has the same


def picture_of(height: int, width: int, rgb: bytes) -> Picture:
    digest = hashlib.sha256(f"image {height} {width} 3 uint8\n".encode())
    digest.update(rgb)
    return Picture(height, width, rgb, digest.hexdigest())


def decode_picture(data: bytes, pixels: int) -> Picture:
    """The first frame, in RGB; transparent parts are white. `pixels`: at most so many. Raises: Refused."""
    return _decoded(data, pixels, _shown)


def decode_mask(data: bytes, pixels: int) -> Picture:
    """White where the picture is fully transparent, which says what is edited, and else black. Raises: Refused."""
    return _decoded(data, pixels, _holes)


def _decoded(data: bytes, pixels: int, show: Callable[[Image.Image], Image.Image]) -> Picture:
    # Formats say their size at the beginning. Pillow raises an error, before it makes room, above twice this number.
    Image.MAX_IMAGE_PIXELS = pixels / 2  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(BytesIO(data), formats=_FORMATS) as image:
                if image.width * image.height > pixels:
                    raise Image.DecompressionBombError
                rgb_image = show(image)
        return picture_of(rgb_image.height, rgb_image.width, rgb_image.tobytes())
    except Image.DecompressionBombError as exc:
        raise Refused(f"it has more than {pixels} pixels (XYLEM_MEDIA_PIXELS)") from exc
    except UnidentifiedImageError as exc:
        raise Refused(f"it is none of {', '.join(_FORMATS)}, or broken") from exc
    except Refused:
        raise
    except MemoryError as exc:
        raise Refused("decoding it needs more memory than XYLEM_MEDIA_DECODE_BYTES") from exc
    except Exception as exc:  # a decoder that meets broken data raises anything: struct.error, SyntaxError, KeyError
        raise Refused("it is broken or incomplete") from exc


def _shown(image: Image.Image) -> Image.Image:
    image.load()
    orientation = _orientation(image)
    if image.mode.startswith("I;16"):
        image = image.convert("I")
    if image.mode == "I":  # 16 bits a pixel, of which RGB has the upper 8
        image = image.point(lambda value: value / 256).convert("L")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.new("RGB", layer.size, _WHITE)
        image.paste(layer, mask=layer)
    return _turned(image.convert("RGB"), orientation)


def _holes(image: Image.Image) -> Image.Image:
    """Raises: Refused."""
    image.load()
    orientation = _orientation(image)
    if not image.has_transparency_data:
        raise Refused("it has no transparency, which says what is edited")
    holes = image.convert("RGBA").getchannel("A").point(lambda alpha: 255 if alpha == 0 else 0)
    if holes.getbbox() is None:
        raise Refused("no part of it is fully transparent, so that nothing would be edited")
    mask = Image.new("RGB", image.size, _BLACK)
    mask.paste(_WHITE, mask=holes)
    return _turned(mask, orientation)


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(_TURNS[orientation]) if orientation in _TURNS else image


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # noqa: BLE001 (cameras write bad EXIF; the pixels are whole, and are shown as they are stored)
        return 1
