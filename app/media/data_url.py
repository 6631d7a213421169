"""`data:` URLs, in base64 only. Pure."""

import re

from app.media.refused import Refused, too_large
from app.media.source import SourceKind

_MOST_HEAD = 256  # characters before the comma
_HEAD = re.compile(r"data:([a-z0-9.+-]+)/[a-z0-9.+-]+(;[a-z0-9.+-]+=[a-z0-9.+-]+)*;base64", re.IGNORECASE)


def base64_in(url: str, kind: SourceKind, most: int) -> bytes:
    """Its base64, of at most `most` bytes when decoded; it isn't decoded here. Raises: Refused."""
    comma = url.find(",", 0, _MOST_HEAD)
    head = _HEAD.fullmatch(url[:comma]) if comma >= 0 else None
    if head is None:
        raise Refused("its data: URL has to be like data:image/png;base64,…")
    if head[1].lower() != kind:
        raise Refused(f"its data: URL says {head[1]}/…, not {kind}/…")
    if len(url) - comma - 1 > (most + 2) // 3 * 4:
        raise too_large(most)
    try:
        return url[comma + 1 :].encode("ascii")
    except UnicodeEncodeError as exc:
        raise Refused("its base64 is not valid") from exc
