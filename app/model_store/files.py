"""A model's remote files: what there is, and fetching one of them. All calls block."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from app.errors import ModelNotFetched
from app.model_store.source import RemoteFile, RemoteModel

PIECE = 32 * 2**20  # bytes of one request, and what a break can cost

Count = Callable[[int], None]  # is told of so many bytes more


@dataclass(frozen=True)
class Listing:
    version: str  # another one when any file has changed
    files: tuple[RemoteFile, ...]
    whole: bool = True  # else a source that can't be reached may have more


class Remote:
    """A model that fsspec can read."""

    def __init__(self, source: RemoteModel, files: Any, root: str) -> None:
        self._source, self._fs, self._root = source, files, root

    def list(self) -> Listing:
        """Raises: ModelNotFetched."""
        raise NotImplementedError

    def copy_here(self, file: RemoteFile, version: str) -> Path | None:
        """The file on this machine, if another program has fetched it: nobody has checked it."""
        return None

    def fetch(self, file: RemoteFile, version: str, folder: Path, count: Count) -> None:
        """Fetches the file into `folder`, going on where an earlier try stopped. Raises: ModelNotFetched."""
        target = folder / file.name
        part = target.with_name(f"{target.name}.{version[:12]}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Not the hub's own download, which leaves nothing behind when it breaks.
            with self._open(file, version) as source, part.open("ab") as sink:
                count(sink.tell())
                source.seek(sink.tell())
                while piece := source.read(min(PIECE, file.size - sink.tell())):
                    sink.write(piece)
                    count(len(piece))
        except Exception as exc:
            raise _not_fetched(self._source, exc, file.name) from exc
        part.rename(target)

    def _open(self, file: RemoteFile, version: str) -> Any:
        raise NotImplementedError


def remote(source: RemoteModel) -> Remote:
    """Raises: ModelNotFetched where the package for it is missing."""
    return _Hub(source) if source.scheme == "hf" else _Bucket(source)


class _Hub(Remote):
    """Hugging Face's, or the server of HF_ENDPOINT, with the user's HF_TOKEN, and with what is in the user's cache."""

    def __init__(self, source: RemoteModel) -> None:
        import huggingface_hub

        endpoint = os.environ.get("HF_ENDPOINT")  # the library reads it only when it is imported
        self._api = huggingface_hub.HfApi(endpoint=endpoint)
        super().__init__(source, huggingface_hub.HfFileSystem(endpoint=endpoint), source.name)

    def list(self) -> Listing:
        source = self._source
        try:
            info = self._api.model_info(source.name, revision=source.revision, files_metadata=True)
        except Exception as exc:
            if (listing := self._cached_listing(exc)) is not None:
                return listing
            raise _not_fetched(source, exc) from exc
        files = (RemoteFile(s.rfilename, s.size or 0, _hub_checksum(s)) for s in info.siblings or ())
        return Listing(str(info.sha), tuple(files))

    def copy_here(self, file: RemoteFile, version: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self._source.name, file.name, revision=version)
        return Path(path).resolve() if isinstance(path, str) else None

    def _cached_listing(self, why: Exception) -> Listing | None:
        """The model in the cache, whose files are named by their checksums; none, if a server has said `why`."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        if isinstance(why, HfHubHTTPError):
            return None
        try:
            folder = Path(snapshot_download(self._source.name, revision=self._source.revision, local_files_only=True))
        except LocalEntryNotFoundError:
            return None
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = (RemoteFile(p.relative_to(folder).as_posix(), p.stat().st_size, _blob_checksum(p)) for p in paths)
        return Listing(folder.name, tuple(files), whole=False)

    def _open(self, file: RemoteFile, version: str) -> Any:
        path = f"{self._root}@{version}/{file.name}"
        return self._fs.open(path, "rb", block_size=PIECE, cache_type="none", size=file.size)


def _hub_checksum(sibling: Any) -> str:
    if sibling.lfs is not None:
        return f"sha256:{sibling.lfs.sha256}"
    return f"git:{sibling.blob_id}" if sibling.blob_id else ""


def _blob_checksum(path: Path) -> str:
    name = path.resolve().name
    kind = {64: "sha256", 40: "git"}.get(len(name))
    return f"{kind}:{name}" if kind and path.is_symlink() else ""


class _Bucket(Remote):
    """S3 or a compatible storage, with the package `s3fs` and AWS's own variables."""

    def __init__(self, source: RemoteModel) -> None:
        try:
            super().__init__(source, *fsspec.core.url_to_fs(str(source), use_listings_cache=False))
        except (ImportError, ValueError) as exc:
            raise _not_fetched(source, exc) from exc

    def list(self) -> Listing:
        try:
            entries = sorted(self._fs.find(self._root, detail=True).items())
        except Exception as exc:
            raise _not_fetched(self._source, exc) from exc
        if not entries:
            raise ModelNotFetched(f"{self._source}: there are no files")
        tags = [
            (name.removeprefix(f"{self._root}/"), int(info["size"]), str(info.get("ETag", "")))
            for name, info in entries
        ]
        files = tuple(RemoteFile(name, size, _md5(tag)) for name, size, tag in tags)
        return Listing(hashlib.sha256(repr(tags).encode()).hexdigest(), files)

    def _open(self, file: RemoteFile, version: str) -> Any:
        return self._fs.open(f"{self._root}/{file.name}", "rb", block_size=PIECE, cache_type="none", size=file.size)


def _md5(etag: str) -> str:
    """An object's ETag is its MD5, unless it was sent in parts."""
    tag = etag.strip('"')
    return f"md5:{tag}" if len(tag) == 32 and "-" not in tag else ""


def checksum(path: Path, like: str) -> str:
    """The file's checksum, of the same kind as `like`."""
    kind = like.partition(":")[0]
    if kind == "git":  # git hashes the size, too
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return f"{kind}:{digest.hexdigest()}"


def _not_fetched(source: RemoteModel, exc: Exception, file: str = "") -> ModelNotFetched:
    reason = str(exc).strip().partition("\n")[0] or type(exc).__name__
    return ModelNotFetched(f"{source}{f', {file}' if file else ''}: {type(exc).__name__}: {reason[:300]}")
