"""The one object of its kind in a worker process, where Celery tasks find it."""

from typing import Generic, TypeVar

T = TypeVar("T")


class ProcessSlot(Generic[T]):
    """Set when the worker starts, by its bootstep, and never again."""

    def __init__(self, where: str) -> None:
        """`where`: the kind of process that sets it, for the error message."""
        self._where = where
        self._value: T | None = None

    def set(self, value: T) -> None:
        assert self._value is None, "a process has one"
        self._value = value

    def __bool__(self) -> bool:
        """Whether it is set: this is such a process."""
        return self._value is not None

    def get(self) -> T:
        assert self._value is not None, f"these tasks run in {self._where}"
        return self._value
