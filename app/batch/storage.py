"""The storage of files: a folder, or any other file system of fsspec, such as S3. All its calls block."""

import asyncio
import io
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any, ParamSpec, TypeVar

import fsspec
from fsspec.spec import AbstractBufferedFile

from app.errors import FileGone, SettingsError, StorageDown

_BLOCK = 8 * 2**20  # bytes of one transfer to or from S3, and of a file's buffer; the default is 50 MiB
_UNFINISHED = "unfinished"  # the folder of files that are being written
_threads = ThreadPoolExecutor(16, thread_name_prefix="storage")

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work` with a storage: one that is slow keeps nothing waiting but its own."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(work, *args, **kwargs))


async def begun(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """`pieces`, each read from a storage `in_thread`. Raises what the first one raises: later it would be too late."""
    return _read(await in_thread(next, pieces, b""), pieces)


async def _read(piece: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
    while piece:
        yield piece
        piece = await in_thread(next, rest, b"")


class Storage:
    def __init__(self, url: str, setting: str = "XYLEM_FILES") -> None:
        """`url`: a path, or a URL such as `s3://bucket/folder`; `setting`: that names it.

        Raises: SettingsError for an unknown protocol.
        """
        try:
            # Other processes write there too, so cached S3 listings would be out of date.
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as exc:
            raise SettingsError(f"{setting}={url}: {exc}") from exc

    @contextmanager
    def write(self, path: str) -> Iterator[IO[bytes]]:
        """Writes all or nothing: the file appears when the block ends without an error. Raises: StorageDown."""
        whole = self._path(path)
        part = f"{self._root}/{_UNFINISHED}/{secrets.token_hex(8)}"
        with _mapped(path, writes=True):
            for folder in (whole.rpartition("/")[0], part.rpartition("/")[0]):
                self._fs.makedirs(folder, exist_ok=True)
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
            # fsspec's own `readline` ignores its limit, and fetches a block for each line.
            yield io.BufferedReader(file, 2**20) if isinstance(file, AbstractBufferedFile) else file

    def put(self, path: str, data: bytes | bytearray | memoryview) -> None:
        """Raises: StorageDown."""
        with self.write(path) as file:
            file.write(data)

    def get(self, path: str) -> bytes | None:
        """The file's bytes; None without the file. Raises: StorageDown."""
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
        """Bytes of a file. Raises: FileGone, StorageDown."""
        with _mapped(path):
            return int(self._fs.size(self._path(path)))

    def delete(self, path: str) -> None:
        """Deletes a file or a folder, if it exists. Raises: StorageDown."""
        with _mapped(path):
            if self._fs.exists(self._path(path)):
                self._fs.rm(self._path(path), recursive=True)

    def folders(self, path: str) -> list[str]:
        """Names of the folders in this one. Raises: StorageDown."""
        with suppress(FileGone), _mapped(path):
            return [str(one).rpartition("/")[2] for one in self._fs.ls(self._path(path), detail=False)]
        return []

    def written_before(self, path: str, at: float) -> bool:
        """Whether all below the folder was written before, seconds since the epoch. Raises: StorageDown."""
        with suppress(FileGone), _mapped(path):
            whole = self._path(path)
            return all(self._fs.modified(one).timestamp() < at for one in self._fs.find(whole) or [whole])
        return False

    def delete_unfinished(self, begun_before: float) -> int:
        """Deletes what processes left that died while they wrote it. Returns how many. Raises: StorageDown.

        `begun_before`: seconds since the epoch; what was written later may be finished still.
        """
        count = 0
        with suppress(FileGone), _mapped(_UNFINISHED):
            for part in self._fs.ls(f"{self._root}/{_UNFINISHED}", detail=False):
                with suppress(FileNotFoundError):  # it is finished, or another process was first
                    if self._fs.modified(part).timestamp() < begun_before:
                        self._fs.rm_file(part)
                        count += 1
        return count

    def _path(self, path: str) -> str:
        parts = path.split("/")
        if not all(parts) or {".", ".."} & set(parts):
            raise FileGone(f"'{path}' is not a valid path in the storage.")
        return f"{self._root}/{path}"


@contextmanager
def _mapped(path: str, *, writes: bool = False) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as exc:
        if writes:  # the folder to write to doesn't exist
            raise StorageDown(f"The storage of files: {_reason(exc)}.") from exc
        raise FileGone(f"There is no '{path}' in the storage.") from exc
    except InterruptedError:  # raised by the caller's block: Python raises none of its own
        raise
    except Exception as exc:
        if not _is_foreign(exc):
            raise
        raise StorageDown(f"The storage of files: {_reason(exc)}.") from exc


def _is_foreign(exc: Exception) -> bool:
    """Whether the storage raised it: fsspec turns S3's errors into OSErrors, but not those of the client library."""
    clients = ("botocore.", "aiohttp.")
    return isinstance(exc, OSError) or any(cls.__module__.startswith(clients) for cls in type(exc).__mro__)


def _reason(exc: Exception) -> Any:
    return getattr(exc, "strerror", None) or type(exc).__name__
