"""What an engine counts for probes, which no client asked for: taken off what operators see."""

from msgspec.structs import replace

from app.engines.base import EngineStats


class ProbedWork:
    """Prompt tokens, or of a painter its steps."""

    def __init__(self) -> None:
        self._probed = self._tokens = self._steps = 0

    def add(self, work: int) -> None:
        self._probed += work

    def without(self, stats: EngineStats) -> EngineStats:
        """The same, less the probes. No count ever falls: an engine may tell of a probe after its answer."""
        self._tokens = max(self._tokens, stats.prefill_tokens - self._probed)
        self._steps = max(self._steps, stats.paint_steps - self._probed)
        return replace(stats, prefill_tokens=self._tokens, paint_steps=self._steps)
