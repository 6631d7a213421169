"""KV blocks in a folder or a bucket: of each, a small sealed file that stands for its KV."""

import time
from collections.abc import Sequence

import structlog
from xxhash import xxh3_64_hexdigest

from app.kv_store.block_store import open_store
from app.kv_store.seal import BlockSeal, Damaged, read_key
from app.kv_store.uses import Uses, used
from app.pools.schema import Tiers

_WORDS = 8  # of 8 bytes, in a file: the block's hash again and again

log = structlog.get_logger(__name__)


class StoredBlocks:
    """A mock engine's blocks in a store. Whatever goes wrong with the store is a miss, and logged once."""

    def __init__(self, url: str, tiers: Tiers, block_size: int, depends: tuple[object, ...]) -> None:
        """`depends`: all that KV depends on besides tokens. Raises: SettingsError."""
        self._store = open_store(url)
        self._seal = BlockSeal(read_key(tiers.key_file) if tiers.key_file else None)
        self._size, self._uses = block_size, Uses[int](self._store.period_s)
        self._folder = f"mock-{block_size}-{xxh3_64_hexdigest(repr(depends).encode())}"
        self._failed = False

    def put(self, block: int, number: int, within: str = "") -> bool:
        """Whether the block is there when this returns. `number`: of it in its prompt, from 0.

        `within`: the folder of its salt, as in `kv_store.salts`; here and below.
        """
        name, path = block.to_bytes(8, "big"), self._path(block, within)
        try:
            if not self._store.has(path):
                when = used(time.time(), self._store.period_s, (number + 1) * self._size)
                self._store.put(path, self._seal.close(name, name * _WORDS), when)
        except Exception as exc:  # noqa: BLE001 (a bucket's client library has errors of its own)
            self._warn(exc)
            return False
        return True

    def read(self, block: int, within: str = "") -> bool:
        """Whether the block is there and sound. One that is damaged, or has another key, is removed."""
        name, path = block.to_bytes(8, "big"), self._path(block, within)
        try:
            if (data := self._store.get(path)) is None:
                return False
            if self._is_sound(name, data):
                return True
            log.warning("stored KV block is damaged: removed", action="kv_block_damaged", path=path)
            self._store.delete(path)
        except Exception as exc:  # noqa: BLE001 (as in `put`)
            self._warn(exc)
        return False

    def use(self, blocks: Sequence[int], within: str = "") -> None:
        """Notes that these leading blocks of a prompt are used."""
        ends = ((block, (i + 1) * self._size) for i, block in enumerate(blocks))
        try:
            for block, when in self._uses.due(ends, time.time()):
                self._store.touch(self._path(block, within), when)
        except Exception as exc:  # noqa: BLE001 (as in `put`)
            self._warn(exc)

    def _is_sound(self, name: bytes, block: bytes) -> bool:
        try:
            return bytes(self._seal.open(name, block)) == name * _WORDS
        except Damaged:
            return False

    def _path(self, block: int, within: str) -> str:
        name = f"{block:016x}"
        return f"{self._folder}/{within}{name[:3]}/{name}"

    def _warn(self, exc: Exception) -> None:
        if not self._failed:
            self._failed = True
            log.warning("KV store fails: its blocks are misses", action="kv_store_failed", error=repr(exc))
