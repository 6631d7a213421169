"""Sources from which adapters may come. Pure: names only; `download.py` looks at addresses."""

import re
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from app.errors import RequestError
from app.model_store.source import RemoteModel, read_source

_SHA256 = re.compile("[0-9a-f]{64}")
_ARCHIVE = re.compile(r"\.(tar|tar\.\w+|tgz)$")
_WEB = ("http", "https")


class Source(NamedTuple):
    scheme: str  # "file", "s3", "hf", "http" or "https"
    host: str  # with its port; or the bucket, or the hub's organisation
    path: PurePosixPath
    revision: str = ""  # of the hub

    @property
    def is_archive(self) -> bool:
        """A tar file, compressed or not; else it is a folder."""
        return _ARCHIVE.search(self.path.name) is not None


def check_source(source: str, sha256: str, hosts: Collection[str]) -> Source:
    """The source of an adapter, if it lies below one of the `hosts` ones. Raises: RequestError."""
    parsed_source = _of_hub(source) if source.startswith("hf://") else _parsed(source)
    if sha256 and not _SHA256.fullmatch(sha256):
        raise RequestError("'sha256' has to be 64 hexadecimal digits in lower case.", param="sha256")
    if parsed_source.scheme in _WEB:
        if not sha256:
            raise RequestError("A source that comes by HTTP needs 'sha256'.", param="sha256")
        if not parsed_source.is_archive:
            raise RequestError("A source that comes by HTTP has to be a tar file.", param="source")
    if not any(_is_below(parsed_source, _parsed(one)) for one in hosts):
        raise RequestError(
            f"This source is not allowed. XYLEM_LORA_SOURCES has: {', '.join(hosts) or 'none'}.", param="source"
        )
    return parsed_source


def _is_below(source: Source, above: Source) -> bool:
    return source[:2] == above[:2] and source.path.is_relative_to(above.path)


def _of_hub(source: str) -> Source:
    """Raises: RequestError."""
    try:
        model = read_source(source)
    except ValueError as exc:
        raise RequestError(f"The source {exc}.", param="source") from exc
    assert isinstance(model, RemoteModel)
    organisation, _, name = model.name.partition("/")
    return Source("hf", organisation, PurePosixPath("/", name), model.revision)


def _parsed(source: str) -> Source:
    """Raises: RequestError."""
    try:
        url = urlsplit(source)
        host = _host(url)
    except ValueError as exc:
        raise RequestError(f"The source is no address: {exc}.", param="source") from exc
    # In an S3 key and in a file's name these are characters like all others.
    path = source.partition("://")[2].partition("/")[2] if url.scheme == "s3" else url.path
    if url.scheme in ("", "file"):
        path = source.removeprefix("file://")
        if not path.startswith("/") or host:
            raise RequestError("A file's source has to be an absolute path.", param="source")
    elif url.scheme not in (*_WEB, "s3", "hf"):
        raise RequestError(
            f"A source is a path, or begins with s3://, hf://, http:// or https://, not {url.scheme}.", param="source"
        )
    elif url.scheme in _WEB and (url.query or url.fragment):
        raise RequestError("A source that comes by HTTP has neither '?' nor '#'.", param="source")
    if ".." in path.split("/") or "%" in path or "\0" in path or not source.isprintable():
        raise RequestError(
            "A source has neither '..' nor '%' in its path, and printable characters only.", param="source"
        )
    return Source(url.scheme or "file", host, PurePosixPath("/" + path.lstrip("/")))


def _host(url: SplitResult) -> str:
    """Raises: ValueError, also of a bad port."""
    if url.scheme in ("", "file", "hf"):
        return url.netloc
    if not url.hostname or "@" in url.netloc:
        raise ValueError("it has no host, or a user")
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    return f"{url.hostname}:{port}" if port else url.hostname
