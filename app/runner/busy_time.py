"""For how long an engine has had something to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


class BusyTime:
    def __init__(self) -> None:
        self.requests = 0
        self._seconds = self._since = 0.0

    @contextmanager
    def one(self) -> Iterator[None]:
        """While the engine has one request more."""
        if not self.requests:
            self._since = monotonic()
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1
            if not self.requests:
                self._seconds += monotonic() - self._since

    @property
    def seconds(self) -> float:
        return self._seconds + (monotonic() - self._since if self.requests else 0.0)
