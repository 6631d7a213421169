"""The adapters that this worker answers with, and the requests that have them. On the engine's loop."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from app.adapters.slots import Use
from app.messages.job import Job
from app.messages.lease import AdapterReport

_NOTHING = nullcontext()


class AdaptersInUse:
    """The adapters and their requests, all by `Adapter.versioned`."""

    def __init__(self) -> None:
        self.open: list[str] = []  # that requests may come for
        self.failed: dict[str, str] = {}  # why one could not be loaded
        self.load_s = 0.0  # that it takes to fetch and load one; 0: not known
        self.on_idle: Callable[[], None] = lambda: None  # called when the last request of one has ended
        self._requests: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def of(self, job: Job) -> AbstractContextManager[None]:
        """Counts the request as one of its adapter meanwhile, if it wants one; `has` has been asked."""
        return _NOTHING if job.adapter is None else self.used(job.adapter)

    def has(self, job: Job) -> bool:
        return job.adapter is None or job.adapter in self.open

    def use(self, name: str) -> Use:
        return Use(self._requests.get(name, 0), self._last.get(name, 0.0))

    def admit(self, name: str) -> None:
        """Requests may come for it from now on."""
        self.open = [*self.open, name]
        self._last[name] = time.monotonic()

    def refuse(self, name: str) -> None:
        """No request begins with it any more; those that have go on."""
        self.open = [other for other in self.open if other != name]

    def forget(self, name: str) -> None:
        """Forgets an adapter that is not there any more."""
        self._last.pop(name, None)

    def report(self) -> AdapterReport:
        return AdapterReport(dict(self.failed), dict(self._requests), self.load_s)

    @contextmanager
    def used(self, name: str) -> Iterator[None]:
        """Counts a request of the adapter, which isn't removed meanwhile."""
        self._requests[name] = self._requests.get(name, 0) + 1
        self._last[name] = time.monotonic()
        try:
            yield
        finally:
            self._requests[name] -= 1
            self._last[name] = time.monotonic()
            if not self._requests[name]:
                del self._requests[name]
                self.on_idle()
