"""Held requests of one flow, in the order in which they get room."""

from bisect import insort
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingLine(Generic[T]):
    """The most urgent first: lower priority, then the earlier deadline, then the earlier arrival."""

    def __init__(self) -> None:
        self._line: list[tuple[int, float, int, bool, T]] = []
        self._count = self._staying = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[T]:
        return (item for *_, item in self._line)

    @property
    def has_removable(self) -> bool:
        return len(self._line) > self._staying

    def push(self, item: T, priority: int, deadline: float, *, stays: bool = False) -> None:
        """An item that `stays` is never removed by `pop_last`."""
        self._count += 1
        self._staying += stays
        insort(self._line, (priority, deadline, self._count, stays, item))

    def pop_last(self) -> T:
        """Removes and returns the least urgent item that doesn't stay; there is one."""
        last = next(i for i in reversed(range(len(self._line))) if not self._line[i][3])
        return self._line.pop(last)[-1]

    def drop(self, is_gone: Callable[[T], bool]) -> list[T]:
        """Removes and returns the items that are `is_gone`."""
        items = [item for *_, item in self._line if is_gone(item)]
        if items:
            self._leave([entry for entry in self._line if not is_gone(entry[-1])])
        return items

    def take(self, most: int) -> list[T]:
        """Removes and returns the `most` most urgent items."""
        entries = self._line[:most]
        self._leave(self._line[most:])
        return [item for *_, item in entries]

    def _leave(self, line: list[tuple[int, float, int, bool, T]]) -> None:
        self._line, self._staying = line, sum(entry[3] for entry in line)
