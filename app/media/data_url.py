"""`data:` URLs, in base64 only. Pure."""

import binascii
import re

from app.media.refused import Refused, too_large
from app.media.source import SourceKind

_MOST_HEAD = 256  # characters before the comma
_URL_SAFE, _BREAKS = bytes.maketrans(b"-_", b"+/"), b"\r\n\t "
_HEAD = re.compile(r"data:([a-z0-9.+-]+)/[a-z0-9.+-]+(;[a-z0-9.+-]+=[a-z0-9.+-]+)*;base64", re.IGNORECASE)


def base64_in(url: str, kind: SourceKind, most: int) -> bytes:
    """Its base64, of at most `most` bytes when decoded; it isn't decoded here. Raises: Refused."""
    comma = url.find(",", 0, _MOST_HEAD)
    head = _HEAD.fullmatch(url[:comma]) if comma >= 0 else None
    if head is None:
        raise Refused("its data: URL has to be like data:image/png;base64,…")
    if head[1].lower() != kind:
        raise Refused(f"its data: URL says {head[1]}/…, not {kind}/…")
    longest = (most + 2) // 3 * 4
    if (length := len(url) - comma - 1) > longest and length - sum(map(url.count, _BREAKS.decode())) > longest:
        raise too_large(most)
    try:
        return url[comma + 1 :].encode("ascii")
    except UnicodeEncodeError as exc:
        raise Refused("its base64 is not valid") from exc


def base64_decoded(data: bytes) -> bytes:
    """Decodes base64 of either alphabet, with or without line breaks and padding. Raises: Refused."""
    plain = data.translate(_URL_SAFE, _BREAKS)
    try:
        return binascii.a2b_base64(plain + b"=" * (-len(plain) % 4), strict_mode=True)
    except binascii.Error as exc:
        raise Refused("its base64 is not valid") from exc
