"""An adapter's files from Hugging Face's hub, or the server of HF_ENDPOINT, with the user's HF_TOKEN. Blocks.

Not with the package's own client, which engines turn off in their whole process (HF_HUB_OFFLINE).
"""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from app.adapters.sources import Source
from app.errors import AdapterFailed
from app.model_store.files import checksum

_SILENT_S = 15.0
_MOST_LISTING = 16 * 2**20  # bytes of what the hub says of a repository


class Repository(NamedTuple):
    """The adapter's repository at one commit."""

    url: str  # of its files
    checksums: Mapping[str, str]  # as `app.model_store.files.checksum` has them

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Raises: FileNotFoundError, OSError."""
        if name not in self.checksums:
            raise FileNotFoundError(2, "the repository has no such file", name)
        with _answer(f"{self.url}/{name}") as stream:
            yield stream

    def check(self, folder: Path, name: str) -> None:
        """Raises: AdapterFailed."""
        hash_ = self.checksums[name]
        if hash_ and checksum(folder / name, hash_) != hash_:
            raise AdapterFailed(f"The adapter's {name} has another checksum than the hub says.")


def repository(source: Source) -> Repository:
    """Raises: AdapterFailed, OSError."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    name = f"{source.host}{source.path}"
    with _answer(f"{endpoint}/api/models/{name}/revision/{source.revision.replace('/', '%2F')}?blobs=true") as stream:
        listing = stream.read(_MOST_LISTING)
    try:
        info = json.loads(listing)
        checksums = {file["rfilename"]: _checksum(file) for file in info["siblings"]}
        return Repository(f"{endpoint}/{name}/resolve/{info['sha']}", checksums)
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise AdapterFailed(f"What the hub says of {name} can't be read: {exc!r}.") from exc


def _checksum(file: Mapping[str, Any]) -> str:
    if file.get("lfs"):
        return f"sha256:{file['lfs']['sha256']}"
    return f"git:{file['blobId']}" if file.get("blobId") else ""


@contextmanager
def _answer(url: str) -> Iterator[IO[bytes]]:
    """Raises: OSError."""
    import huggingface_hub

    request = urllib.request.Request(url)  # noqa: S310 (the operator's endpoint)
    if token := huggingface_hub.get_token():
        request.add_unredirected_header("Authorization", f"Bearer {token}")  # large files lie on another host
    try:
        with urllib.request.urlopen(request, timeout=_SILENT_S) as answer:  # noqa: S310 (the same)
            yield answer
    except urllib.error.HTTPError as exc:
        raise OSError(
            f"the hub answered {exc.code}{f' ({code})' if (code := exc.headers.get('X-Error-Code')) else ''}"
        ) from exc
