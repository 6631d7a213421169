"""An adapter's two files, from where they are into a folder. Blocks.

Nothing else is taken along, and weights in safetensors only: other formats are programs. What `sha256` is of: of a tar
file, that file; of a folder, what `sha256sum adapter_config.json adapter_model.safetensors | sha256sum` says in it.
"""

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import fsspec

from app.adapters.download import download
from app.adapters.hub import repository
from app.adapters.sources import Source, check_source
from app.errors import AdapterFailed, RequestError
from app.messages.wanted import Adapter
from app.settings import Settings

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES = (CONFIG, WEIGHTS)
_MOST_CONFIG = 2**20  # bytes
_PIECE = 2**20


def fetch(adapter: Adapter, folder: Path, settings: Settings) -> None:
    """Its files into that empty folder, checked. Raises: AdapterFailed."""
    with _foreign():
        source = check_source(adapter.source, adapter.sha256, settings.allowed_lora_sources)
        if not source.is_archive:
            digest = _copied(source, folder, settings)
        else:
            with tempfile.TemporaryFile(dir=folder.parent) as archive:
                _whole(source, adapter.source, archive, settings)
                archive.seek(0)
                digest = hashlib.file_digest(archive, "sha256").hexdigest()
                _matches(adapter, digest)
                archive.seek(0)
                _extract(archive, folder, settings.max_lora)
        _matches(adapter, digest)


def check_rank(folder: Path, most: int) -> None:
    """Checks the kind and the rank in the adapter's configuration. Raises: AdapterFailed."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        ranks = [int(config["r"]), *(int(rank) for rank in (config.get("rank_pattern") or {}).values())]
        kind = config.get("peft_type", "LORA")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise AdapterFailed(f"The adapter's {CONFIG} can't be read: {exc!r}.") from exc
    if kind != "LORA":
        raise AdapterFailed(f"The adapter is of the kind {kind!r}, not LORA.")
    if not 1 <= max(ranks) <= most:
        raise AdapterFailed(f"The adapter's rank is {max(ranks)}; this engine takes up to {most}.")


def _matches(adapter: Adapter, digest: str) -> None:
    if adapter.sha256 and digest != adapter.sha256:
        raise AdapterFailed(f"The adapter's SHA-256 is {digest}, not {adapter.sha256}.")


def _copied(source: Source, folder: Path, settings: Settings) -> str:
    """A folder's files; returns its digest."""
    remaining_bytes, lines = settings.max_lora, b""
    hub = repository(source) if source.scheme == "hf" else None
    for name in FILES:
        file_source = hub.open(name) if hub else _opened(source, settings, name)
        with file_source as stream, (folder / name).open("wb") as file:
            size, digest = _copy(
                stream, file, min(remaining_bytes, _MOST_CONFIG) if name == CONFIG else remaining_bytes
            )
        if hub:
            hub.check(folder, name)
        remaining_bytes -= size
        lines += f"{digest}  {name}\n".encode()
    return hashlib.sha256(lines).hexdigest()


def _whole(source: Source, url: str, into: IO[bytes], settings: Settings) -> None:
    if source.scheme in ("http", "https"):
        download(url, into, settings.max_lora, settings.lora_networks)
        return
    with _opened(source, settings) as stream:
        _copy(stream, into, settings.max_lora)


@contextmanager
def _opened(source: Source, settings: Settings, *below: str) -> Iterator[IO[bytes]]:
    if source.scheme == "s3":
        with fsspec.filesystem("s3", use_listings_cache=False).open(
            f"{source.host}{source.path.joinpath(*below)}", "rb"
        ) as file:
            yield file
        return
    path = Path(source.path, *below).resolve(strict=True)  # a link may lead elsewhere
    check_source(str(path), "", settings.allowed_lora_sources + _resolved(settings.allowed_lora_sources))
    with path.open("rb") as file:
        yield file


def _resolved(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The folders among them as they are without links."""
    return tuple(str(Path(one).resolve()) for one in hosts if one.startswith("/"))


def _extract(archive: IO[bytes], folder: Path, most: int) -> None:
    """The two files, wherever they stand in it."""
    missing, whole = set(FILES), most + _MOST_CONFIG
    with tarfile.open(fileobj=archive, mode="r:*") as tar:
        for member in tar:
            if member.offset_data + member.size > whole:
                raise AdapterFailed(f"The adapter's archive has more than {whole} bytes (XYLEM_MAX_LORA).")
            name = member.name.rpartition("/")[2]
            if name not in missing or not member.isreg():
                continue
            stream = tar.extractfile(member)
            assert stream is not None
            with stream, (folder / name).open("wb") as file:
                size, _ = _copy(stream, file, min(most, _MOST_CONFIG) if name == CONFIG else most)
            most -= size
            missing.remove(name)
            if not missing:
                return
    raise AdapterFailed(f"The adapter's archive has no {' and no '.join(sorted(missing))}.")


def _copy(file: IO[bytes], into: IO[bytes], most: int) -> tuple[int, str]:
    """Size and SHA-256."""
    size, digest = 0, hashlib.sha256()
    while piece := file.read(_PIECE):
        size += len(piece)
        if size > most:
            raise AdapterFailed(f"The adapter has more than {most} bytes (XYLEM_MAX_LORA), or its {CONFIG} has.")
        digest.update(piece)
        into.write(piece)
    return size, digest.hexdigest()


@contextmanager
def _foreign() -> Iterator[None]:
    """Raises AdapterFailed for what goes wrong with foreign files and servers."""
    try:
        yield
    except RequestError as exc:
        raise AdapterFailed(exc.message) from exc
    except FileNotFoundError as exc:
        raise AdapterFailed(f"The adapter's source has no {Path(exc.filename or str(exc)).name}.") from exc
    except (OSError, EOFError, tarfile.TarError, ImportError) as exc:
        raise AdapterFailed(f"The adapter's source can't be read: {_reason(exc)}.") from exc
    except Exception as exc:
        if not type(exc).__module__.startswith(("botocore.", "aiohttp.", "zlib", "lzma", "_lzma")):
            raise
        raise AdapterFailed(f"The adapter's source can't be read: {type(exc).__name__}.") from exc


def _reason(exc: BaseException) -> Any:
    return getattr(exc, "strerror", None) or exc
