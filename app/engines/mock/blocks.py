"""The KV cache's bookkeeping: blocks of `block_size` tokens, shared by prefix, evicted least recently used.

A full block is known by a hash chained over all tokens before it, so equal hashes mean equal prefixes.
A block that no sequence holds stays cached until it is needed. Blocks are freed tail first, and a child is
never held without its parent, so a child is always evicted before its parent: the cached set is prefix-closed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from app.engines.kv_publisher import AllBlocksCleared, BlockRemoved, BlockStored, ExtraKey, KvEvent
from app.engines.mock.tiers import Load, MockTiers
from app.kv_store.salts import folder, label_of
from app.messages.kinds import TierUse
from app.messages.media import Media

_ROOT = b"mock\0\0\0\0"


class BlockTable:
    """The blocks that one sequence holds, in the order of its tokens."""

    __slots__ = ("blocks", "committed", "hashes", "keys", "media", "root", "within")

    def __init__(self, salt: str | None = None, adapter: str | None = None, media: Sequence[Media] = ()) -> None:
        """Sequences of different salts or adapters share no blocks; with other `media`, none from theirs on."""
        self.media = media
        self.within = folder(label_of(salt))  # where a store has its blocks
        # What the first block's hash covers besides tokens, and what all others' do.
        self.keys = [key for key in (adapter, salt) if key], [adapter] if adapter else None
        self.root = xxh3_64_digest(repr((adapter, salt)).encode()) if adapter or salt else _ROOT
        self.blocks: list[int] = []
        self.hashes: list[int] = []  # of the leading full blocks, computed when needed
        self.committed = 0  # leading blocks that are in the cache

    def media_keys(self, block: int, size: int) -> list[tuple[str, int]]:
        """Pictures and sounds in that block: the hash of each, and its offset from the block's start."""
        start, end = block * size, (block + 1) * size
        return [(m.sha256, m.offset - start) for m in self.media if m.offset < end and start < m.offset + m.length]

    def covers(self, block: int, size: int) -> bytes:
        """Bytes that the block's hash covers besides tokens."""
        return repr(keys).encode() if self.media and (keys := self.media_keys(block, size)) else b""


class BlockManager:
    """The bookkeeping of one cache's blocks. Not thread-safe.

    A method without enough free blocks changes nothing, and returns None or False.
    """

    def __init__(self, total: int, block_size: int, *, record_events: bool = False) -> None:
        self.total = total
        self.block_size = block_size
        self.events: list[KvEvent] = []  # the owner empties it; stays empty unless `record_events`
        self.on_commit: Callable[[int, int], None] | None = None  # called with each newly cached block and its hash
        self.tiers: MockTiers | None = None  # behind this cache
        self._record = record_events
        self._refs = [0] * total
        self._hash_of: list[int | None] = [None] * total
        self._cached: dict[int, int] = {}  # hash → block
        self._free = OrderedDict.fromkeys(range(total))  # blocks without a reference, next victim first

    @property
    def used(self) -> int:
        """Blocks that some sequence holds."""
        return self.total - len(self._free)

    @property
    def cached(self) -> frozenset[int]:
        """The hashes of all cached blocks, held or not."""
        return frozenset(self._cached)

    def admit(self, table: BlockTable, tokens: Sequence[int], *, reuse: bool = True) -> int | None:
        """Give an empty table blocks for all `tokens`. Returns how many were cached, None if there are too few blocks.

        The last token is never taken from the cache: its logits are needed.
        """
        hits = self._match(table, tokens) if reuse else []
        fresh = -(-len(tokens) // self.block_size) - len(hits)
        if fresh > len(self._free) - sum(not self._refs[block] for block in hits):
            return None
        for block in hits:
            self._hold(block)
        table.committed = len(hits)
        if self.tiers is not None:
            self.tiers.keep(table.hashes[: len(hits)], tokens, within=table.within)
        table.blocks = hits + [self._take() for _ in range(fresh)]
        return table.committed * self.block_size

    def first_missing(self, table: BlockTable, tokens: Sequence[int]) -> int | None:
        """The hash of the first block of an empty table's tokens that isn't cached; None: all are, but the last."""
        hits = len(self._match(table, tokens))
        return table.hashes[hits] if hits < (len(tokens) - 1) // self.block_size else None

    def behind(self, table: BlockTable, tokens: Sequence[int], use: TierUse) -> Load | None:
        """Blocks of an admitted table that tiers have, behind the cached ones; the last token is in none of them."""
        if self.tiers is None:
            return None
        blocks = table.hashes[table.committed : (len(tokens) - 1) // self.block_size]
        return self.tiers.find(blocks, use, table.within)

    def tell(self, event: KvEvent) -> None:
        if self._record:
            self.events.append(event)

    def grow(self, table: BlockTable, length: int) -> bool:
        """Make room for `length` tokens; False when the cache is full."""
        fresh = -(-length // self.block_size) - len(table.blocks)
        if fresh > len(self._free):
            return False
        table.blocks.extend(self._take() for _ in range(fresh))
        return True

    def commit(self, table: BlockTable, tokens: Sequence[int], count: int) -> None:
        """Put every block that the first `count` tokens fill into the cache."""
        first, full = table.committed, count // self.block_size
        self._hash(table, tokens, full)
        stored_from = first
        for i in range(first, full):
            block, digest = table.blocks[i], table.hashes[i]
            cached_block = self._cached.get(digest)
            if cached_block is None:
                self._cached[digest] = block
                self._hash_of[block] = digest
                if self.on_commit is not None:
                    self.on_commit(block, digest)
            else:
                # Another sequence computed the same tokens meanwhile. Holding its block instead of a duplicate
                # keeps the rule that children are held with their parents.
                self._hold(cached_block)
                table.blocks[i] = cached_block
                self._drop(block)
                self._stored(table, tokens, stored_from, i)
                stored_from = i + 1
        self._stored(table, tokens, stored_from, full)
        table.committed = full

    def digests(self, table: BlockTable, tokens: Sequence[int]) -> list[int]:
        """The hashes of all blocks of the table's first `tokens`, with a last block that isn't full."""
        full = len(tokens) // self.block_size
        self._hash(table, tokens, full)
        rest = array("I", tokens[full * self.block_size :]).tobytes()
        parent = table.hashes[full - 1].to_bytes(8, "little") if full else table.root
        rest += table.covers(full, self.block_size) if rest else b""
        return table.hashes[:full] + ([xxh3_64_intdigest(parent + rest)] if rest else [])

    def release(self, table: BlockTable) -> None:
        """Release all blocks. Committed ones stay cached until they are needed."""
        for block in reversed(table.blocks):
            self._drop(block)
        table.blocks = []
        table.committed = 0

    def clear(self) -> bool:
        """Forget all cached blocks; False, and nothing done, while a sequence holds any."""
        if self.used:
            return False
        self._cached.clear()
        self._hash_of = [None] * self.total
        if self.tiers is not None:
            self.tiers.clear()
        self.tell(AllBlocksCleared())
        return True

    def _match(self, table: BlockTable, tokens: Sequence[int]) -> list[int]:
        limit = (len(tokens) - 1) // self.block_size
        self._hash(table, tokens, limit)
        hits = []
        for digest in table.hashes[:limit]:
            block = self._cached.get(digest)
            if block is None:
                break
            hits.append(block)
        return hits

    def _hash(self, table: BlockTable, tokens: Sequence[int], blocks: int) -> None:
        """Extend the table's hashes to its first `blocks` blocks."""
        hash_count = len(table.hashes)
        if blocks <= hash_count:
            return
        width = 4 * self.block_size
        data = array("I", tokens[hash_count * self.block_size : blocks * self.block_size]).tobytes()
        parent = table.hashes[-1].to_bytes(8, "little") if hash_count else table.root
        for start in range(0, len(data), width):
            digest = xxh3_64_intdigest(
                parent + data[start : start + width] + table.covers(len(table.hashes), self.block_size)
            )
            table.hashes.append(digest)
            parent = digest.to_bytes(8, "little")

    def _hold(self, block: int) -> None:
        if not self._refs[block]:
            del self._free[block]
        self._refs[block] += 1

    def _drop(self, block: int) -> None:
        self._refs[block] -= 1
        if not self._refs[block]:
            self._free[block] = None
            if self._hash_of[block] is None:  # not cached: the first to be reused
                self._free.move_to_end(block, last=False)

    def _take(self) -> int:
        """The least recently used free block, evicted. The caller has checked that there is one."""
        block, _ = self._free.popitem(last=False)
        digest = self._hash_of[block]
        if digest is not None:
            del self._cached[digest]
            self._hash_of[block] = None
            if self._record:
                self.events.append(BlockRemoved([digest]))
        self._refs[block] = 1
        return block

    def _stored(self, table: BlockTable, tokens: Sequence[int], first: int, end: int) -> None:
        if first == end:
            return
        if self._record:
            size = self.block_size
            parent = table.hashes[first - 1] if first else None
            ids = list(tokens[first * size : end * size])
            head, others = table.keys
            keys: list[list[ExtraKey] | None] = [
                [*((head if head and not block else others) or ()), *table.media_keys(block, size)] or None
                for block in range(first, end)
            ]
            extra_keys = keys if any(keys) else None
            self.events.append(BlockStored(table.hashes[first:end], parent, ids, size, extra_keys=extra_keys))
        if self.tiers is not None:
            self.tiers.keep(table.hashes[:end], tokens, first, table.within)
