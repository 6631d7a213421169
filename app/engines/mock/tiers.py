"""KV behind one rank's cache: host memory, least recently used, and a store that outlives the process. No clock.

What is committed on the device goes to host memory, and from there to the store. A block is its hash: no KV is kept.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.engines.kv_publisher import BlockRemoved, BlockStored, KvEvent
from app.engines.mock.args import MockArgs
from app.engines.mock.stored_blocks import StoredBlocks
from app.errors import SettingsError
from app.messages.kinds import TierUse
from app.pools.schema import Pool

_HOST, _STORE = "CPU", "STORAGE"  # vLLM's names
_MOST_STORED = 4096  # blocks that are known to be stored; of others the store is asked


class Load(NamedTuple):
    """Blocks of a prompt that tiers have, behind those that the device has."""

    blocks: Sequence[int]  # their hashes
    stored: int  # so many come from the store


class MockTiers:
    def __init__(
        self, capacity: int, block_size: int, store: StoredBlocks | None, tell: Callable[[KvEvent], None]
    ) -> None:
        """`capacity`: of host memory, in blocks. `tell` is called with each event."""
        self._capacity, self._size, self._store, self._tell = capacity, block_size, store, tell
        self._host: OrderedDict[int, None] = OrderedDict()  # the next victim first
        self._stored: dict[int, None] = {}  # that the store is known to have, the oldest first

    @property
    def host(self) -> frozenset[int]:
        return frozenset(self._host)

    @property
    def stored(self) -> frozenset[int]:
        """Hashes of the blocks in the store, as far as this process knows."""
        return frozenset(self._stored)

    def keep(self, hashes: Sequence[int], tokens: Sequence[int], first: int = 0, within: str = "") -> None:
        """Keeps these leading blocks of a sequence. They are on the device, those from number `first` on since now.

        `within`: the store's folder for them, as in `kv_store.salts`.
        """
        for i, block in enumerate(head := hashes[: self._capacity]):
            if block not in self._host:
                self._told(_HOST, hashes, tokens, i)
        for block in reversed(head):  # tails are evicted before heads, so that no block is here without its parent
            self._host[block] = None
            self._host.move_to_end(block)
        if (over := len(self._host) - self._capacity) > 0:
            self._tell(BlockRemoved([self._host.popitem(last=False)[0] for _ in range(over)], _HOST))
        if self._store is not None:
            self._store.use(hashes, within)
            for i in range(first, len(hashes)):
                if hashes[i] not in self._stored and self._store.put(hashes[i], i, within):
                    self._stored[hashes[i]] = None
                    if len(self._stored) > _MOST_STORED:  # others may have removed it long ago
                        del self._stored[next(iter(self._stored))]
                    self._told(_STORE, hashes, tokens, i)

    def find(self, hashes: Sequence[int], use: TierUse = "all", within: str = "") -> Load | None:
        """The leading ones of these blocks that are in host memory or in the store, in one or the other."""
        count = stored_count = 0
        for block in hashes if use != "none" else ():
            if block not in self._host:
                if use == "host" or not self._read(block, within):
                    break
                stored_count += 1
            count += 1
        return Load(hashes[:count], stored_count) if count else None

    def clear(self) -> None:
        """Forget what is in host memory. The cache's AllBlocksCleared tells of it."""
        self._host.clear()

    def _read(self, block: int, within: str) -> bool:
        if self._store is None:
            return False
        sound = self._store.read(block, within)
        if not sound and block in self._stored:
            del self._stored[block]
            self._tell(BlockRemoved([block], _STORE))
        return sound

    def _told(self, medium: str, hashes: Sequence[int], tokens: Sequence[int], i: int) -> None:
        """Tells that a block is stored, as vLLM does: with an event for each block, without extra keys."""
        ids = list(tokens[i * self._size : (i + 1) * self._size])
        self._tell(BlockStored([hashes[i]], hashes[i - 1] if i else None, ids, self._size, medium=medium))


def tiers_of(pool: Pool, args: MockArgs, tell: Callable[[KvEvent], None]) -> MockTiers | None:
    """The pool's tiers, for one rank. Raises: SettingsError."""
    if pool.tiers is None:
        return None
    block_bytes, store = args.handoff.block_bytes, None
    capacity = int(pool.tiers.host_gb * 1e9 / block_bytes)
    if not capacity:
        raise SettingsError(f"tiers.host_gb={pool.tiers.host_gb}: no room for a block of {block_bytes} bytes")
    if pool.tiers.disk is not None:
        depends = pool.model, args.handoff.layout, block_bytes
        store = StoredBlocks(pool.tiers.disk, pool.tiers, pool.block_size, depends)
    return MockTiers(capacity, pool.block_size, store, tell)
