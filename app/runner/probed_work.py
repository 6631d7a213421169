"""Takes what an engine counts for probes, which no client asked for, off what operators see."""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from app.engines.base import EngineStats
from app.errors import RequestError


class ProbedWork:
    """Prompt tokens, or of a painter its steps."""

    def __init__(self) -> None:
        self._probed = self._tokens = self._steps = 0

    @contextmanager
    def asked(self, work: int) -> Iterator[None]:
        """Takes a probe's work off from its beginning: the engine may count it before its answer is here.

        An engine that refuses it, by a RequestError, counts nothing.
        """
        self._probed += work
        try:
            yield
        except RequestError:
            self._probed -= work
            raise

    def without(self, stats: EngineStats) -> EngineStats:
        """The same, less the probes. No count ever falls: an engine may tell of a probe after its answer."""
        self._tokens = max(self._tokens, stats.prefill_tokens - self._probed)
        self._steps = max(self._steps, stats.paint_steps - self._probed)
        return replace(stats, prefill_tokens=self._tokens, paint_steps=self._steps)
