"""Chunks: what a connector keeps of a prompt in pieces of several blocks, with hashes of its own. No I/O.

LMCache's events have a chunk's tokens, but no salt, adapter or picture. So a chunk's blocks are named only where the
device has, or gets, blocks of the same tokens without any of these: else a prompt with a salt would show to those
without that somebody has asked it.
"""

from collections.abc import Iterable
from itertools import islice

from app.kv.blocks import chain
from app.kv.events import BlockStored, EngineHash


class Chunks:
    """Stand-ins for the hashes that an engine would have for the blocks of each chunk."""

    def __init__(self, block_size: int, on_device: Iterable[bytes], most: float) -> None:
        """`on_device`: our hashes of the device's blocks, so far. `most`: blocks in chunks."""
        self._block_size, self._most = block_size, most
        self._on_device = {*on_device}
        self._parts: dict[EngineHash, list[bytes]] = {}  # of a chunk
        self._ours: dict[bytes, bytes] = {}  # stand-in → our hash, if it has no more than tokens
        self._stand_ins: dict[bytes, bytes] = {}  # the other way round

    def add(self, event: BlockStored, root: bytes) -> list[EngineHash]:
        """Stand-ins of the chunk's blocks; none if what is before it isn't known."""
        (theirs,) = event.block_hashes
        parent: bytes | None = root
        if event.parent_block_hash is not None:
            before = self._parts.get(event.parent_block_hash)
            parent = self._ours[before[-1]] if before else None
        if parent is None:
            return []
        self.remove([theirs])
        ours = chain(parent, event.token_ids, self._block_size)
        self._parts[theirs] = parts = [b"%r/%d" % (theirs, number) for number in range(len(ours))]
        self._ours |= zip(parts, ours, strict=True)
        self._stand_ins |= zip(ours, parts, strict=True)
        return [*parts]

    def forget(self) -> list[EngineHash]:
        """Forgets the oldest chunks beyond the bound: returns stand-ins of their blocks."""
        parts: list[EngineHash] = []
        while len(self._ours) > self._most:
            parts += self.remove([*islice(self._parts, 1)])
        return parts

    def remove(self, chunks: Iterable[EngineHash]) -> list[EngineHash]:
        """Stand-ins of the blocks of those that are here."""
        parts = [part for theirs in chunks for part in self._parts.pop(theirs, ())]
        for part in parts:
            ours = self._ours.pop(part)
            if self._stand_ins.get(ours) == part:
                del self._stand_ins[ours]
        return [*parts]

    def find(self, part: EngineHash) -> bytes | None:
        """Our hash of a block that the device has, too."""
        ours = self._ours.get(part) if isinstance(part, bytes) else None
        return ours if ours in self._on_device else None

    def computed(self, ours: bytes) -> EngineHash | None:
        """The device has a block: returns its stand-in, if it is in a chunk."""
        self._on_device.add(ours)
        return self._stand_ins.get(ours)

    def dropped(self, ours: bytes) -> None:
        """The device has a block no more."""
        self._on_device.discard(ours)

    def clear(self) -> None:
        """Forgets all."""
        for entries in (self._on_device, self._parts, self._ours, self._stand_ins):
            entries.clear()


def is_chunk(event: BlockStored, block_size: int) -> bool:
    """Whether an event tells of one piece of several whole blocks, with its tokens."""
    size = event.block_size
    whole = len(event.block_hashes) == 1 and len(event.token_ids) == size
    return whole and size > block_size and size % block_size == 0
