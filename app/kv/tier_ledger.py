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
        self._names: dict[EngineHash, bytes] = {}  # of what it holds → our hash
        self._unnamed: set[EngineHash] = set()  # the same, as long as ours isn't known
        self._pending = Pending()
        self._changed: dict[bytes, EngineHash] = {}  # of the pending ones: our hash → the engine's

    def __len__(self) -> int:
        """Of blocks whose hash is known."""
        return len(self._names)

    def blocks(self) -> list[bytes]:
        return [*self._names.values()]

    def take(self) -> Changes | None:
        self._changed = {}
        return self._pending.take()

    def take_named(self) -> tuple[Changes, dict[bytes, EngineHash]] | None:
        """As `take`, with the engine's hash of each block that has changed, by ours."""
        names = self._changed
        changes = self.take()
        return None if changes is None else (changes, names)

    def find(self, theirs: EngineHash) -> bytes | None:
        return self._names.get(theirs)

    def named(self) -> dict[bytes, EngineHash]:
        """All blocks whose hash is known: ours → the engine's."""
        return {ours: theirs for theirs, ours in self._names.items()}

    def add(self, blocks: Iterable[EngineHash], find: Callable[[EngineHash], bytes | None]) -> None:
        """`find`: our hash of a block, if it is known. One that is here is told again: others may have removed it."""
        for theirs in blocks:
            ours = self._names.get(theirs) or find(theirs)
            self._unnamed.add(theirs)
            if ours is not None:
                self.name(theirs, ours)

    def name(self, theirs: EngineHash, ours: bytes) -> None:
        """What a block is, if it is here and that isn't known."""
        if theirs in self._unnamed:
            self._unnamed.remove(theirs)
            self._names[theirs] = ours
            self._changed[ours] = theirs
            self._pending.add(ours)

    def remove(self, blocks: Iterable[EngineHash]) -> None:
        for theirs in blocks:
            self._unnamed.discard(theirs)
            if (ours := self._names.pop(theirs, None)) is not None:
                self._changed[ours] = theirs
                self._pending.remove(ours)

    def clear(self) -> None:
        self._names.clear()
        self._unnamed.clear()
        self._changed.clear()
        self._pending.clear()
