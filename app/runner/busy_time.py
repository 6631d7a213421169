"""Measures how long an engine has been busy, and for whom."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


class BusyTime:
    def __init__(self) -> None:
        self.requests = 0  # on the engine now
        self._seconds = self._share = self._at = 0.0  # of the last change of `requests`

    @contextmanager
    def one(self, cost: "BusyPart | None" = None) -> Iterator[None]:
        """Counts one more request on the engine meanwhile, with its `cost`."""
        self._change(1)
        if cost is not None:
            cost.begin(self._share)
        try:
            yield
        finally:
            self._change(-1)
            if cost is not None:
                cost.end(self._share)

    @property
    def seconds(self) -> float:
        return self._seconds + (monotonic() - self._at if self.requests else 0.0)

    @property
    def share(self) -> float:
        """Seconds that a request would have cost that was on the engine from its first busy second on."""
        return self._share + ((monotonic() - self._at) / self.requests if self.requests else 0.0)

    def _change(self, by: int) -> None:
        now = monotonic()
        if self.requests:
            self._seconds += now - self._at
            self._share += (now - self._at) / self.requests
        self._at = now
        self.requests += by


class BusyPart:
    """A request's part of the engine's busy seconds: of n requests, each one costs an n-th of the time."""

    def __init__(self, working: BusyTime) -> None:
        self._working, self._seconds, self._began = working, 0.0, -1.0

    @property
    def seconds(self) -> float:
        """Seconds that it has cost so far."""
        return self._seconds + (self._working.share - self._began if self._began >= 0 else 0.0)

    def begin(self, share: float) -> None:
        """The request is on the engine. `share`: that of BusyTime."""
        self._began = share

    def end(self, share: float) -> None:
        """Notes that the request has left the engine; it may come back."""
        self._seconds += share - self._began
        self._began = -1.0
