"""Where files lie: a folder, or whatever else fsspec knows, S3 among them. All calls block."""

import io
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import fsspec
from fsspec.spec import AbstractBufferedFile

from app.errors import FileGone, SettingsError, StorageDown

_BLOCK = 8 * 2**20  # bytes that S3 is sent or asked for at once, and a file takes in memory: its own default is 50 MiB


class Storage:
    def __init__(self, url: str) -> None:
        """`url`: a path, or `s3://bucket/folder` and the like. Raises: SettingsError when nobody here speaks that."""
        try:
            # Others write there too: what S3 listed before would be out of date.
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as exc:
            raise SettingsError(f"XYLEM_FILES={url}: {exc}") from exc

    @contextmanager
    def write(self, path: str) -> Iterator[IO[bytes]]:
        """All or nothing: it is there under its name when this has ended without an error. Raises: StorageDown."""
        whole = self._path(path)
        part = f"{whole}.{secrets.token_hex(4)}.part"
        with _mapped(path, writes=True):
            self._fs.makedirs(whole.rpartition("/")[0], exist_ok=True)
            try:
                with self._fs.open(part, "wb", block_size=_BLOCK) as file:
                    yield file
                self._fs.mv(part, whole)
            except BaseException:
                if self._fs.exists(part):
                    self._fs.rm_file(part)
                raise

    @contextmanager
    def read(self, path: str) -> Iterator[IO[bytes]]:
        """Raises: FileGone, StorageDown."""
        with _mapped(path), self._fs.open(self._path(path), "rb", block_size=_BLOCK) as file:
            # Lines of any length are asked for: S3's own files have no limit for them, and fetch a block for each.
            yield io.BufferedReader(file, 2**20) if isinstance(file, AbstractBufferedFile) else file

    def put(self, path: str, data: bytes) -> None:
        with self.write(path) as file:
            file.write(data)

    def get(self, path: str) -> bytes | None:
        """None if it isn't there. Raises: StorageDown."""
        try:
            with self.read(path) as file:
                return file.read()
        except FileGone:
            return None

    def copy(self, path: str, to: str) -> None:
        """Raises: FileGone, StorageDown."""
        with self.read(path) as source, self.write(to) as file:
            shutil.copyfileobj(source, file, 2**20)

    def size(self, path: str) -> int:
        """In bytes. Raises: FileGone, StorageDown."""
        with _mapped(path):
            return int(self._fs.size(self._path(path)))

    def delete(self, path: str) -> None:
        """A file or a folder; what isn't there is gone already. Raises: StorageDown."""
        with _mapped(path):
            if self._fs.exists(self._path(path)):
                self._fs.rm(self._path(path), recursive=True)

    def _path(self, path: str) -> str:
        parts = path.split("/")
        if not all(parts) or {".", ".."} & set(parts):
            raise FileGone(f"'{path}' is no file of the storage.")
        return f"{self._root}/{path}"


@contextmanager
def _mapped(path: str, *, writes: bool = False) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as exc:
        if writes:  # the target is not there
            raise StorageDown(f"The storage of files: {_reason(exc)}.") from exc
        raise FileGone(f"There is no '{path}' in the storage.") from exc
    except InterruptedError:  # the reader's or writer's: Python raises none of its own
        raise
    except Exception as exc:
        if not _is_foreign(exc):
            raise
        raise StorageDown(f"The storage of files: {_reason(exc)}.") from exc


def _is_foreign(exc: Exception) -> bool:
    """fsspec makes OSErrors of what S3 says, but not of its client's own errors, such as nobody answering."""
    clients = ("botocore.", "aiohttp.")
    return isinstance(exc, OSError) or any(cls.__module__.startswith(clients) for cls in type(exc).__mro__)


def _reason(exc: Exception) -> Any:
    return getattr(exc, "strerror", None) or type(exc).__name__
