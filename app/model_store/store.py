"""The folder of fetched models: one folder for each version, and beside them their records and locks.

    <version>/            the model's files
    .records/<version>    JSON, `Record`
    .latest/<source>      the version that a source's name stands for
    .locks/<version>      locked, shared, by each process that uses the model; its time is that of the last use
    .locks/<source>.fetch locked while one of the source's versions is fetched
    .locks/store          locked while room is made

Locks are the kernel's (flock): they end with the process that has them.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from app.errors import ModelNotFetched
from app.model_store.files import Remote, checksum, remote
from app.model_store.source import Part, RemoteFile, RemoteModel, wanted
from app.telemetry import logger

log = logger(__name__)

Progress = Callable[[int, int], None]  # bytes so far, of so many


@dataclass(frozen=True)
class Record:
    """The record of what is known of a version on this machine."""

    source: str
    version: str
    part: Part  # the largest that was ever asked for
    files: tuple[RemoteFile, ...]  # of that part
    checked: tuple[str, ...] = ()  # the names of those that are there, with the right size and checksum

    @property
    def size(self) -> int:
        """Bytes that it has when it is complete."""
        return sum(file.size for file in self.files)

    @property
    def there(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files if file.name in self.checked)

    @property
    def complete(self) -> bool:
        return len(self.checked) == len(self.files)

    def lacks(self, part: Part) -> list[RemoteFile]:
        """Its files that are not there."""
        return [file for file in wanted(self.files, part) if file.name not in self.checked]

    def has(self, part: Part) -> bool:
        return part in (self.part, "text") and not self.lacks(part)


@dataclass(frozen=True)
class StoredModel:
    """A row of `xylem models`."""

    record: Record
    folder: Path
    there: int  # bytes, also of files that have not arrived wholly
    in_use: bool
    used_at: float  # seconds since the epoch


class ModelStore:
    def __init__(self, folder: Path, most: int) -> None:
        """`most`: bytes of all models together."""
        self._folder, self._most = folder, most
        self._in_use: list[int] = []  # descriptors of the locks that this process has until its end

    def obtain(
        self, source: RemoteModel, part: Part, *, progress: Progress | None = None, refresh: bool = False
    ) -> Path:
        """The model's folder; in use by this process from now on.

        Nothing is looked up if it is there, unless `refresh` is set. Raises: ModelNotFetched.
        """
        folder = None if refresh else self._find(source, part)
        if folder is not None:
            return folder
        try:
            with self._locked(f"{source.family}.fetch"):  # another process may be fetching it: then it is there now
                return (None if refresh else self._find(source, part)) or self._fetch(source, part, progress)
        except OSError as exc:
            raise ModelNotFetched(f"{source}: {exc}") from exc

    def stored(self) -> list[StoredModel]:
        """All that there is, the last used one first."""
        rows = []
        for path in self._folder.glob(".records/*"):
            record, lock = _read(path), self._lock_file(path.name)
            if record is not None:
                folder, used_at = self._folder / path.name, lock.stat().st_mtime
                there = record.there + sum(part.stat().st_size for part in folder.rglob("*.part"))
                rows.append(StoredModel(record, folder, there, not self._is_free(path.name), used_at))
        return sorted(rows, key=lambda row: -row.used_at)

    def close(self) -> None:
        """Nothing is in use by this process any more."""
        while self._in_use:
            os.close(self._in_use.pop())

    def _find(self, source: RemoteModel, part: Part) -> Path | None:
        latest = self._folder / ".latest" / source.slug
        name = latest.read_text() if latest.exists() else ""
        if not name:
            return None
        self._use(name)  # before the look: from now on nobody deletes it
        record = self._record(name)
        return self._folder / name if record is not None and record.has(part) else None

    def _fetch(self, source: RemoteModel, part: Part, progress: Progress | None) -> Path:
        origin = remote(source)
        listing = origin.list()
        name = f"{source.family}--{listing.version[:12]}"
        self._use(name)
        before = self._record(name)
        whole: Part = "all" if before is not None and before.part == "all" else part
        try:
            files = tuple(wanted(listing.files, whole))
        except ValueError as exc:
            raise ModelNotFetched(f"{source}: {exc}") from exc
        record = Record(str(source), listing.version, whole, files, before.checked if before else ())
        if record.lacks(part):
            with self._locked("store"):
                self._make_room(record, name)
                self._write(record, name)
        for file in record.lacks(part):
            _fetch_file(origin, file, record, self._folder / name, progress)
            record = replace(record, checked=(*record.checked, file.name))
            self._write(record, name)
        if listing.whole:
            _replace(self._folder / ".latest" / source.slug, name)
        log.info("model_fetched", source=str(source), version=listing.version, bytes=record.there)
        return self._folder / name

    def _make_room(self, record: Record, name: str) -> None:
        """Raises: ModelNotFetched, if what is in use leaves too little. Sizes are those of complete models."""
        others = {
            p.name: other_record
            for p in self._folder.glob(".records/*")
            if p.name != name and (other_record := _read(p))
        }
        over = sum(other.size for other in others.values()) + record.size - self._most
        for oldest in sorted(others, key=lambda other: self._lock_file(other).stat().st_mtime):
            if over <= 0:
                break
            if self._delete(oldest):
                over -= others[oldest].size
                log.info("model_deleted", source=others[oldest].source, bytes=others[oldest].size)
        if over > 0:
            raise ModelNotFetched(
                f"{record.source} has {record.size} bytes, which is {over} more than XYLEM_MODEL_STORE_BYTES="
                f"{self._most} leaves beside the models in use"
            )
        free = shutil.disk_usage(self._folder).free
        if record.size - record.there > free:
            raise ModelNotFetched(f"{record.source} needs {record.size - record.there} bytes, and {free} are free")

    def _delete(self, name: str) -> bool:
        """False, and nothing done, while a process uses it."""
        with self._lock_file(name).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            (self._folder / ".records" / name).unlink()  # first: a folder without a record is not used
            shutil.rmtree(self._folder / name, ignore_errors=True)
            return True

    def _is_free(self, name: str) -> bool:
        with self._lock_file(name).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def _use(self, name: str) -> None:
        path = self._lock_file(name)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(path)
        self._in_use.append(lock)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with self._lock_file(name).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _lock_file(self, name: str) -> Path:
        path = self._folder / ".locks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():  # else its time would change
            path.touch()
        return path

    def _record(self, name: str) -> Record | None:
        return _read(self._folder / ".records" / name)

    def _write(self, record: Record, name: str) -> None:
        _replace(self._folder / ".records" / name, json.dumps(asdict(record)))


def _fetch_file(origin: Remote, file: RemoteFile, record: Record, folder: Path, progress: Progress | None) -> None:
    """Raises: ModelNotFetched; a file that is not what its source says is deleted."""
    byte_count = record.there

    def count(more: int) -> None:
        nonlocal byte_count
        byte_count += more
        if progress is not None:
            progress(byte_count, record.size)

    path = folder / file.name
    copy = origin.copy_here(file, record.version)
    if copy is not None and _identity(copy, file) == (file.size, file.checksum):
        _link(copy, path)
        count(file.size)
        return
    origin.fetch(file, record.version, folder, count)
    size, digest = _identity(path, file)
    if (size, digest) != (file.size, file.checksum):
        path.unlink()
        raise ModelNotFetched(
            f"{record.source}: {file.name} arrived with {size} bytes and {digest or 'no checksum'}, not with "
            f"{file.size} bytes and {file.checksum or 'no checksum'}"
        )


def _identity(path: Path, file: RemoteFile) -> tuple[int, str]:
    """The size and checksum that a path has in place of the file's."""
    return path.stat().st_size, checksum(path, file.checksum) if file.checksum else ""


def _link(copy: Path, path: Path) -> None:
    """The same bytes under another name, twice on the disk only where they have to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        path.hardlink_to(copy)
    except OSError:  # another file system, or another user's file
        shutil.copyfile(copy, path)


def _read(path: Path) -> Record | None:
    """None without a record, or with one of another version of this program: the model is fetched anew."""
    try:
        raw = json.loads(path.read_text())
        files = tuple(RemoteFile(**file) for file in raw.pop("files"))
        return Record(**raw | {"files": files, "checked": tuple(raw["checked"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)
