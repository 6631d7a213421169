"""Encoded pictures in this process's memory, from where other workers fetch them with NIXL, and fetching theirs."""

import asyncio
import secrets
import zlib
from collections import OrderedDict

from msgspec import Struct

from app.engines.base import Embedding
from app.errors import HandoffFailed
from app.ids import WorkerId
from app.kv.nixl import Nixl
from app.kv.pages import Pages
from app.messages.handoff import EmbeddingHandle

_PAGE = 2**16  # bytes
_AT_ONCE = 4  # fetches
_TIMEOUT_S = 2.0  # of a fetch: encoding the picture here takes less than that, in most cases
_LONG = 2**20  # bytes, of which the sum is made in a thread
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Kept(Struct, frozen=True):
    handle: EmbeddingHandle
    forgotten: list[str]  # names of others, whose pages it has


class EmbeddingMemory:
    """Keeps the most recently used ones, as many as there is room for. Belongs to the event loop that uses it first."""

    def __init__(self, worker: WorkerId, size: int) -> None:
        """`size`: bytes."""
        self._worker, self._size = worker, size
        self._starting = asyncio.Lock()
        self._nixl: Nixl | None = None  # from the first use on, with the next
        self._pages: Pages
        self._kept: OrderedDict[str, tuple[EmbeddingHandle, list[int]]] = OrderedDict()
        self._fetching = asyncio.Semaphore(_AT_ONCE)

    async def start(self) -> None:
        """Takes seconds the first time. Raises: SettingsError where there is no NIXL."""
        await self._started()

    def find(self, name: str) -> EmbeddingHandle | None:
        """The handle of one that is kept; it is the most recently used one then."""
        if name not in self._kept:
            return None
        self._kept.move_to_end(name)
        return self._kept[name][0]

    async def keep(self, name: str, embedding: Embedding, weights: str) -> Kept:
        """Raises: HandoffFailed for one that is larger than the memory, SettingsError where there is no NIXL."""
        nixl, pages = await self._started()
        checksum = await _checksum(embedding.data)
        page_count = pages.needed(len(embedding.data))
        if page_count * _PAGE > pages.size:
            raise HandoffFailed(f"An encoded picture of {len(embedding.data)} bytes is larger than embedding_bytes.")
        removals = [name] if name in self._kept else []
        while pages.free + sum(len(self._kept[one][1]) for one in removals) < page_count:
            removals.append(next(one for one in self._kept if one not in removals))
        for one in removals:
            pages.give_back(self._kept.pop(one)[1])
        page_ids = pages.take(page_count)
        pages.write(page_ids, embedding.data)
        handle = EmbeddingHandle(
            self._worker,
            nixl.name,
            metadata=nixl.metadata,
            pages=page_ids,
            page_bytes=_PAGE,
            rows=embedding.rows,
            width=embedding.width,
            dtype=embedding.dtype,
            checksum=checksum,
            weights=weights,
        )
        self._kept[name] = handle, page_ids
        return Kept(handle, [one for one in removals if one != name])

    async def fetch(self, handle: EmbeddingHandle) -> Embedding:
        """Raises: HandoffFailed when it can't be had, or is another one by now; SettingsError without NIXL."""
        nixl, pages = await self._started()
        size = handle.rows * handle.width * _ITEM_BYTES.get(handle.dtype, 0)
        if handle.page_bytes != _PAGE or len(handle.pages) != pages.needed(size) or not size:
            raise HandoffFailed(f"The encoded picture at {handle.worker} is kept in another way.")
        async with self._fetching:
            if pages.free < len(handle.pages):
                raise HandoffFailed("There is no memory to fetch an encoded picture into.")
            page_ids = pages.take(len(handle.pages))
            try:
                async with asyncio.timeout(_TIMEOUT_S):  # also for the connection
                    await nixl.connect(handle.agent, handle.metadata)
                pairs = list(zip(page_ids, handle.pages, strict=True))
                await nixl.move("READ", handle.agent, pairs, _PAGE, b"fetched", timeout_s=_TIMEOUT_S)
                data = pages.read(page_ids, size)
            except TimeoutError:
                raise HandoffFailed(f"{handle.worker} does not answer.") from None
            finally:
                pages.give_back(page_ids)
        if await _checksum(data) != handle.checksum:
            raise HandoffFailed(f"{handle.worker} has another picture there by now.")
        return Embedding(handle.rows, handle.width, handle.dtype, data)

    async def close(self) -> None:
        if self._nixl is not None:
            await self._nixl.close()

    async def _started(self) -> tuple[Nixl, Pages]:
        async with self._starting:
            if self._nixl is None:
                self._pages = Pages(self._size, _PAGE)
                nixl = await asyncio.to_thread(Nixl, f"pictures-{secrets.token_hex(8)}", _ignore)
                await nixl.start(self._pages.address, self._pages.size)
                self._nixl = nixl
        return self._nixl, self._pages


def _ignore(_note: bytes) -> None:
    """Ignores that a picture was fetched: it stays until its place is needed."""


async def _checksum(data: bytes) -> int:
    return await asyncio.to_thread(zlib.crc32, data) if len(data) > _LONG else zlib.crc32(data)
