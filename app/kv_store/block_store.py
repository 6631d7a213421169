"""Stores for KV blocks beyond engines: a folder, or a bucket. All calls block; several threads may make them."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import fsspec

from app.errors import SettingsError

_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700  # KV tells its prompt to who can read it


class StoredBlock(NamedTuple):
    path: str
    size: int  # bytes
    used: float  # when it was last used, s since the epoch: see `uses.py`; in a bucket, when that was noted


class BlockStore(Protocol):
    """Paths are relative, with `/`. Errors are OSErrors, and for buckets also those of the client library."""

    period_s: float  # in which a block's use is to be noted once

    def has(self, path: str) -> bool: ...

    def get(self, path: str) -> bytes | None:
        """None if there is none."""

    def put(self, path: str, data: bytes | bytearray, used_at: float) -> None:
        """All or nothing: others see all of it, or none. `used_at`: as `StoredBlock` has it, if one can choose."""

    def touch(self, path: str, used_at: float) -> None:
        """Notes that the block is used, if it is there."""

    def delete(self, path: str) -> None:
        """Deletes the block, if it is there."""

    def all(self) -> Iterator[StoredBlock]:
        """Everything below it, of all models."""


class FolderStore:
    period_s = 600.0

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, path: str) -> bool:
        return (self._root / path).exists()

    def get(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, path: str, data: bytes | bytearray, used_at: float) -> None:
        whole = self._root / path
        part = whole.with_name(f"{whole.name}.{secrets.token_hex(4)}.part")
        _make_private(whole.parent)
        try:
            with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _PRIVATE_FILE), "wb") as file:
                file.write(data)
            os.utime(part, (used_at, used_at))
            part.replace(whole)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def touch(self, path: str, used_at: float) -> None:
        with suppress(FileNotFoundError):
            os.utime(self._root / path, (used_at, used_at))

    def delete(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    def all(self) -> Iterator[StoredBlock]:
        for folder, _, names in os.walk(self._root):
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):  # gone meanwhile
                    stat = path.stat()
                    yield StoredBlock(str(path.relative_to(self._root)), stat.st_size, stat.st_mtime)


class BucketStore:
    """A bucket, by fsspec. An object appears whole by itself. Its time is the server's."""

    period_s = 86400.0  # each note is a request

    def __init__(self, url: str) -> None:
        """Raises: SettingsError for an unknown protocol."""
        try:
            # Other engines write there too, so listings would be out of date.
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as exc:
            raise SettingsError(f"tiers.disk={url}: {exc}") from exc

    def has(self, path: str) -> bool:
        return bool(self._fs.exists(f"{self._root}/{path}"))

    def get(self, path: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(f"{self._root}/{path}"))
        except FileNotFoundError:
            return None

    def put(self, path: str, data: bytes | bytearray, used_at: float) -> None:
        self._fs.pipe_file(f"{self._root}/{path}", data)

    def touch(self, path: str, used_at: float) -> None:
        if "s3" not in self._fs.protocol:
            return  # fsspec has no word for it
        with suppress(FileNotFoundError):
            whole = f"{self._root}/{path}"
            self._fs.cp_file(whole, whole, MetadataDirective="REPLACE")  # onto itself: S3 has no other way

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{path}")

    def all(self) -> Iterator[StoredBlock]:
        for name, info in self._fs.find(self._root, detail=True).items():
            when = info.get("LastModified") or info.get("mtime") or 0.0
            last_use = when.timestamp() if isinstance(when, datetime) else float(when)
            yield StoredBlock(name.removeprefix(f"{self._root}/"), int(info["size"]), last_use)


# A disk that is full, or away: what is stored there is misses until that is over.
_FOR_NOW = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ENOTCONN}


def open_store(url: str) -> BlockStore:
    """`url`: a folder's path, or a URL such as `s3://bucket/kv`. Raises: SettingsError."""
    if "://" in url:
        return BucketStore(url)
    try:
        _make_private(Path(url))
    except OSError as exc:
        if exc.errno not in _FOR_NOW:
            raise SettingsError(f"tiers.disk={url}: {exc.strerror}") from exc
    return FolderStore(Path(url))


def _make_private(folder: Path) -> None:
    """Makes a folder and its parents, readable by no others: `mkdir(parents=True)` makes parents that are."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(_PRIVATE_FOLDER, exist_ok=True)
