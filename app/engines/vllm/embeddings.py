"""Encoded pictures as vLLM's ECExampleConnector has them: a file for each, in a folder of this process's own.

vLLM looks for a picture's file when it schedules the picture, and dies if it is gone when it reads it in the same step.
So a file stays as long as any request with that picture is in the engine, and a little longer.
"""

import asyncio
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from app.engines.base import Embedding, GenerateRequest
from app.errors import EngineFailed

log = structlog.get_logger(__name__)

_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of our own in it, which only this user reads)
_PREFIX = "xylem-embeddings-"
_MOST = 256 * 2**20  # bytes of all files
_LONGER_S = 5.0  # than the last request with it: vLLM hears of an abort a step later
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NAMES = {name: code for code, name in _DTYPES.items()}
_FILE, _TENSOR = "encoder_cache.safetensors", "ec_cache"  # the connector's names


class EmbeddingFolder:
    def __init__(self) -> None:
        place = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
        _remove_orphans(place)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))
        self._users: Counter[str] = Counter()  # requests with a picture
        self._sizes: dict[str, int] = {}  # of the files

    @asynccontextmanager
    async def holding(self, request: GenerateRequest) -> AsyncIterator[None]:
        """Has the files of the request's encoded pictures while it is in the engine."""
        pictures = {one.media.sha256: one.embedding for one in request.media}
        self._users.update(pictures.keys())
        try:
            for name, embedding in pictures.items():
                if embedding is not None and name not in self._sizes:
                    await self._put(name, embedding)
            yield
        finally:
            asyncio.get_running_loop().call_later(_LONGER_S, self._left, list(pictures))

    async def take(self, name: str) -> Embedding:
        """Reads what vLLM has written under that name, and removes it. Raises: EngineFailed."""
        return await asyncio.to_thread(self._take, name)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    async def _put(self, name: str, embedding: Embedding) -> None:
        if sum(self._sizes.values()) + len(embedding.data) > _MOST:
            log.warning("encoded_picture_not_taken", reason="the folder is full")
            return
        self._sizes[name] = len(embedding.data)
        try:
            await asyncio.to_thread(self._write, name, embedding)
        except OSError as exc:  # vLLM encodes it
            log.warning("encoded_picture_not_taken", reason=exc.strerror)
            self._remove(name)

    def _write(self, name: str, embedding: Embedding) -> None:
        entry = {
            "dtype": _NAMES[embedding.dtype],
            "shape": [embedding.rows, embedding.width],
            "data_offsets": [0, len(embedding.data)],
        }
        header = json.dumps({_TENSOR: entry}).encode()
        header += b" " * (-len(header) % 8)
        folder = self.path / name
        folder.mkdir(exist_ok=True)  # vLLM makes it when it looks
        with (folder / "part").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.write(embedding.data)
        (folder / "part").rename(folder / _FILE)

    def _take(self, name: str) -> Embedding:
        try:
            raw = (self.path / name / _FILE).read_bytes()
        except OSError as exc:
            raise EngineFailed("vLLM has written no encoded picture.") from exc
        finally:
            shutil.rmtree(self.path / name, ignore_errors=True)
        begin = 8 + int.from_bytes(raw[:8], "little")
        entry = json.loads(raw[8:begin])[_TENSOR]
        rows, width = entry["shape"]
        return Embedding(rows, width, _DTYPES[entry["dtype"]], raw[begin:])

    def _left(self, names: list[str]) -> None:
        self._users.subtract(names)
        for name in [name for name in names if not self._users[name]]:
            del self._users[name]
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._sizes.pop(name, None)
        shutil.rmtree(self.path / name, ignore_errors=True)


def _remove_orphans(place: Path) -> None:
    """Folders of processes that were killed."""
    for folder in place.glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with suppress(OSError):
                shutil.rmtree(folder)
