"""Collects what has changed in a cache since it was last written to the index. No I/O."""

from typing import NamedTuple


class Changes(NamedTuple):
    """`cleared` came first."""

    cleared: bool
    added: list[bytes]
    removed: list[bytes]


class Pending:
    """Changes that are still to be taken."""

    def __init__(self) -> None:
        self._there: dict[bytes, bool] = {}  # block hash → whether it is cached now
        self._cleared = False

    def add(self, block: bytes) -> None:
        self._there[block] = True

    def remove(self, block: bytes) -> None:
        self._there[block] = False

    def clear(self) -> None:
        self._there.clear()
        self._cleared = True

    def take(self) -> Changes | None:
        """The changes since the last call; None when there are none."""
        if not self._there and not self._cleared:
            return None
        additions = [block for block, there in self._there.items() if there]
        removals = [block for block, there in self._there.items() if not there]
        changes = Changes(self._cleared, additions, removals)
        self._there, self._cleared = {}, False
        return changes
