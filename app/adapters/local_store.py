"""The adapters that were fetched on this host: a folder, which several workers may share, and which is bounded.

Each adapter has a folder of its own, and its lock says who uses it: who fetches or removes it alone, and all that have
loaded it together. So nobody takes away what an engine may read again.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.errors import AdapterFailed

_WHOLE, _PART = "files", "part"
_AGAIN_S = 0.02


class HeldAdapter:
    """An adapter's files, which stay while this is open."""

    def __init__(self, entry: Path, lock: int) -> None:
        self.path = entry / _WHOLE
        self._lock: int | None = lock

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class LocalStore:
    def __init__(self, folder: Path, most: int) -> None:
        """`most`: bytes."""
        self._folder, self._most = folder, most

    def hold(self, name: str, fetch: Callable[[Path], None]) -> HeldAdapter:
        """An adapter's files, which `fetch` puts into an empty folder if they are not there yet. Blocks.

        Raises: AdapterFailed, and what `fetch` raises; then there is nothing.
        """
        entry = self._folder / name
        try:
            while True:
                lock = _locked(entry)
                if _fetched(entry, lock, fetch):
                    os.utime(entry)
                    self._shrink(entry)
                    return HeldAdapter(entry, lock)
                os.close(lock)  # somebody removed it
        except OSError as exc:
            raise AdapterFailed(f"The adapter can't be kept in {self._folder}: {exc.strerror}.") from exc

    def _shrink(self, path: Path) -> None:
        """Removes what nobody uses, what was not used for longest first, until the rest is within the bound."""
        sizes = {entry: _size(entry) for entry in self._folder.iterdir() if entry.is_dir()}
        total = sum(size for size, _ in sizes.values())
        for entry in sorted(sizes, key=lambda e: sizes[e][1]):
            if total <= self._most:
                return
            if entry != path and _removed(entry):
                total -= sizes[entry][0]


def _locked(entry: Path) -> int:
    """A descriptor of the folder, locked by us alone, or shared if its files are there.

    Nobody waits for a lock of its own: who has the files keeps the shared one for as long as they are loaded.
    """
    while True:
        entry.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            lock = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits while somebody fetches them
            with suppress(BlockingIOError):
                if not (entry / _WHOLE).is_dir():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_same(entry, lock):
                    return lock
            os.close(lock)
            time.sleep(_AGAIN_S)  # another one looked at the same moment


def _fetched(entry: Path, lock: int, fetch: Callable[[Path], None]) -> bool:
    """Its files are there, and the lock is shared; or somebody has taken them away meanwhile."""
    if not (entry / _WHOLE).is_dir():
        part = entry / _PART
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            fetch(part)
            part.rename(entry / _WHOLE)
        except BaseException:
            shutil.rmtree(entry, ignore_errors=True)
            os.close(lock)
            raise
    fcntl.flock(lock, fcntl.LOCK_SH)
    return _is_same(entry, lock) and (entry / _WHOLE).is_dir()


def _is_same(entry: Path, lock: int) -> bool:
    """Nobody has removed it since it was opened."""
    try:
        return entry.stat().st_ino == os.fstat(lock).st_ino
    except FileNotFoundError:
        return False


def _removed(entry: Path) -> bool:
    with suppress(OSError):
        lock = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry)
        finally:
            os.close(lock)
        return True
    return False


def _size(entry: Path) -> tuple[int, float]:
    """Size in bytes, and when it was last used."""
    with suppress(OSError):
        return sum(file.stat().st_size for file in entry.rglob("*") if file.is_file()), entry.stat().st_mtime
    return 0, 0.0
