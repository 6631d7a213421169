"""Files below XYLEM_MEDIA_FOLDER. Blocks."""

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.media.refused import Refused, too_large


def path_in(url: str) -> Path:
    """The path in a `file:` URL. Raises: Refused."""
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise Refused("its URL can't be read") from exc
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise Refused("its file: URL has to be like file:///folder/picture.png")
    return Path(unquote(parts.path))


def read_file(path: Path, folder: Path | None, most: int) -> bytes:
    """Raises: Refused, with the same words for what is not there as for what lies elsewhere."""
    if folder is None:
        raise Refused("files of this machine can't be named (XYLEM_MEDIA_FOLDER is not set)")
    try:
        real_path = path.resolve(strict=True)  # without links
        if not real_path.is_relative_to(folder.resolve()):
            raise FileNotFoundError
        # Links that have appeared meanwhile are not followed, and a pipe is not waited for.
        with os.fdopen(os.open(real_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileNotFoundError
            data = file.read(most + 1)
    except (OSError, ValueError, RuntimeError) as exc:  # ValueError: a zero byte; RuntimeError: links in a circle
        raise Refused("there is no such file below XYLEM_MEDIA_FOLDER") from exc
    if len(data) > most:
        raise too_large(most)
    return data
