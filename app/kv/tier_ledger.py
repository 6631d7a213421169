"""The blocks that a tier behind an engine's own cache holds, by its events. No I/O.

These lack what a block's hash covers besides tokens (salt, LoRA adapter, pictures). So a block gets our hash from
events of the device only: from earlier ones, since what goes to a tier was computed; or from later ones, since what was
loaded is stored on the device next.
"""

from collections.abc import Callable, Iterable

from app.kv.changes import Changes, Pending
from app.kv.events import EngineHash


class TierLedger:
    def __init__(self) -> None:
        self._held: dict[EngineHash, bytes | None] = {}  # → our hash; None: not known yet
        self._pending = Pending()
        self._changed: dict[bytes, EngineHash] = {}  # of the pending ones: our hash → the engine's

    def __len__(self) -> int:
        """Of blocks whose hash is known."""
        return sum(ours is not None for ours in self._held.values())

    def blocks(self) -> list[bytes]:
        return [ours for ours in self._held.values() if ours is not None]

    def take(self) -> Changes | None:
        self._changed = {}
        return self._pending.take()

    def take_named(self) -> tuple[Changes, dict[bytes, EngineHash]] | None:
        """As `take`, with the engine's hash of each block that has changed, by ours."""
        names = self._changed
        changes = self.take()
        return None if changes is None else (changes, names)

    def find(self, theirs: EngineHash) -> bytes | None:
        return self._held.get(theirs)

    def named(self) -> dict[bytes, EngineHash]:
        """All blocks whose hash is known: ours → the engine's."""
        return {ours: theirs for theirs, ours in self._held.items() if ours is not None}

    def add(self, blocks: Iterable[EngineHash], find: Callable[[EngineHash], bytes | None]) -> None:
        """`find`: our hash of a block, if it is known."""
        for theirs in blocks:
            if self._held.get(theirs) is None:
                self._held[theirs] = None
                if (ours := find(theirs)) is not None:
                    self.name(theirs, ours)

    def name(self, theirs: EngineHash, ours: bytes) -> None:
        """What a block is, if it is here."""
        if theirs in self._held and self._held[theirs] is None:
            self._held[theirs] = ours
            self._changed[ours] = theirs
            self._pending.add(ours)

    def remove(self, blocks: Iterable[EngineHash]) -> None:
        for theirs in blocks:
            if (ours := self._held.pop(theirs, None)) is not None:
                self._changed[ours] = theirs
                self._pending.remove(ours)

    def clear(self) -> None:
        self._held.clear()
        self._changed.clear()
        self._pending.clear()
