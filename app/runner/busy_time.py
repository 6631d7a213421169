"""How long an engine has been busy."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


class BusyTime:
    def __init__(self) -> None:
        self.requests = 0  # on the engine now
        self._seconds = self._since = 0.0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Counts one more request on the engine meanwhile."""
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
