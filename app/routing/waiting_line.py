"""Held requests, in the order in which they get room."""

from bisect import insort
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingLine(Generic[T]):
    """Bounded; the most urgent first: lower priority, then the earlier deadline, then the earlier arrival."""

    def __init__(self) -> None:
        self._line: list[tuple[int, float, int, bool, T]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[T]:
        return (item for *_, item in self._line)

    def push(self, item: T, priority: int, deadline: float, limit: int, *, stays: bool = False) -> T | None:
        """Adds `item`. If there are more than `limit` now, removes the least urgent one and returns it.

        An item that `stays` is never removed for this.
        """
        self._count += 1
        insort(self._line, (priority, deadline, self._count, stays, item))
        if stays or len(self._line) <= limit:
            return None
        last = next(i for i in reversed(range(len(self._line))) if not self._line[i][3])
        return self._line.pop(last)[-1]

    def drop(self, gone: Callable[[T], bool]) -> list[T]:
        """Removes and returns the items that are `gone`."""
        dropped = [item for *_, item in self._line if gone(item)]
        if dropped:
            self._line = [entry for entry in self._line if not gone(entry[-1])]
        return dropped

    def take(self, most: int) -> list[T]:
        """Removes and returns the `most` most urgent items."""
        taken, self._line = self._line[:most], self._line[most:]
        return [item for *_, item in taken]
