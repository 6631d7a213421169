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

    def __len__(self) -> int:
        """Of blocks whose hash is known."""
        return sum(ours is not None for ours in self._held.values())

    def blocks(self) -> list[bytes]:
        return [ours for ours in self._held.values() if ours is not None]

    def take(self) -> Changes | None:
        return self._pending.take()

    def find(self, theirs: EngineHash) -> bytes | None:
        return self._held.get(theirs)

    def add(self, blocks: Iterable[EngineHash], find: Callable[[EngineHash], bytes | None]) -> None:
        """`find`: our hash of a block, if it is known."""
        for theirs in blocks:
            if self._held.get(theirs) is None:
                ours = self._held[theirs] = find(theirs)
                if ours is not None:
                    self._pending.add(ours)

    def name(self, theirs: EngineHash, ours: bytes) -> None:
        """What a block is, if it is here."""
        if theirs in self._held and self._held[theirs] is None:
            self._held[theirs] = ours
            self._pending.add(ours)

    def remove(self, blocks: Iterable[EngineHash]) -> None:
        for theirs in blocks:
            if (ours := self._held.pop(theirs, None)) is not None:
                self._pending.remove(ours)

    def clear(self) -> None:
        self._held.clear()
        self._pending.clear()
