"""The blocks that a tier behind an engine's own cache holds, by its events. No I/O.

These lack what a block's hash covers besides tokens (salt, LoRA adapter, pictures). So a block gets our hash from
events of the device only: from earlier ones, since what goes to a tier was computed; or from later ones, since what was
loaded is stored on the device next.
"""

import math
from collections.abc import Callable, Iterable
from itertools import chain, islice

from app.kv.changes import Changes, Pending
from app.kv.events import EngineHash


class TierLedger:
    """A block is here once, in however many media it lies, until it is in none of them."""

    def __init__(self, most: float = math.inf) -> None:
        """`most`: blocks of a medium; beyond, those that were told longest ago count as removed."""
        self._most = most
        self._held: dict[str, dict[EngineHash, None]] = {}  # by medium; what was told last is the last
        self._names: dict[EngineHash, bytes] = {}  # of what it holds → our hash, where that is known
        self._pending = Pending()
        self._changed: dict[bytes, EngineHash] = {}  # of the pending ones: our hash → the engine's

    def __len__(self) -> int:
        """Number of blocks whose hash is known."""
        return len(self._names)

    def blocks(self) -> list[bytes]:
        return [*self._names.values()]

    def take(self) -> Changes | None:
        self._changed = {}
        return self._pending.take()

    def take_named(self) -> tuple[Changes, dict[bytes, EngineHash]] | None:
        """Changes as of `take`, with the engine's hash of each block that has changed, by ours."""
        names = self._changed
        changes = self.take()
        return None if changes is None else (changes, names)

    def find(self, theirs: EngineHash) -> bytes | None:
        return self._names.get(theirs)

    def named(self) -> dict[bytes, EngineHash]:
        """All blocks whose hash is known: ours → the engine's."""
        return {ours: theirs for theirs, ours in self._names.items()}

    def add(self, blocks: Iterable[EngineHash], medium: str, find: Callable[[EngineHash], bytes | None]) -> None:
        """`find`: our hash of a block, if it is known. One that is here is told again: others may have removed it."""
        medium_blocks = self._held.setdefault(medium, {})
        for theirs in blocks:
            medium_blocks.pop(theirs, None)
            medium_blocks[theirs] = None
            ours = self._names.get(theirs) or find(theirs)
            if ours is not None:
                self._add(theirs, ours)
        if len(medium_blocks) > self._most:
            self.remove([*islice(medium_blocks, len(medium_blocks) - int(self._most))], medium)

    def name(self, theirs: EngineHash, ours: bytes) -> None:
        """Gives a block our hash, if it is here and has none."""
        if theirs not in self._names and self._holds(theirs):
            self._add(theirs, ours)

    def remove(self, blocks: Iterable[EngineHash], medium: str) -> None:
        medium_blocks = self._held.get(medium, {})
        for theirs in blocks:
            medium_blocks.pop(theirs, None)
            if not self._holds(theirs) and (ours := self._names.pop(theirs, None)) is not None:
                self._changed[ours] = theirs
                self._pending.remove(ours)

    @property
    def count(self) -> int:
        """Number of blocks in each medium together, with those whose hash isn't known."""
        return sum(map(len, self._held.values()))

    def held(self) -> list[EngineHash]:
        """Blocks that `count` counts."""
        return [*chain.from_iterable(self._held.values())]

    def forget(self, blocks: Iterable[EngineHash]) -> None:
        """Others have removed these, and said so. Those that were told again since the last `take` stay."""
        recent_blocks = set(self._changed.values())
        for theirs in blocks:
            if theirs in recent_blocks:
                continue
            for medium_blocks in self._held.values():
                medium_blocks.pop(theirs, None)
            self._names.pop(theirs, None)

    def clear(self) -> None:
        self._held.clear()
        self._names.clear()
        self._changed.clear()
        self._pending.clear()

    def _holds(self, theirs: EngineHash) -> bool:
        return any(theirs in medium_blocks for medium_blocks in self._held.values())

    def _add(self, theirs: EngineHash, ours: bytes) -> None:
        self._names[theirs] = ours
        self._changed[ours] = theirs
        self._pending.add(ours)
