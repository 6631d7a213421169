"""One part of a request that is a picture, a sound, a video or a mask, before it is fetched."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

SourceKind = Literal["image", "audio", "video", "mask"]


class MediaSource(Struct, frozen=True):
    """A part's source: exactly one of `url`, `data` and `path` is given."""

    kind: SourceKind
    param: str  # the part's name in the request, for errors: "messages.0.content.1"
    url: str | None = None  # "https:", "data:" in base64, or "file:" below XYLEM_MEDIA_FOLDER
    data: bytes | None = None  # the encoded content itself, such as a stored file's
    path: Path | None = None  # a file below XYLEM_MEDIA_FOLDER
