"""Reads what TensorRT-LLM tells of its iterations. No I/O."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from app.engines.steps import StepMeter


class _Rank(NamedTuple):
    running: int = 0
    used_blocks: int = 0


class Iterations:
    """The last figures of each attention-DP rank."""

    def __init__(self) -> None:
        self.steps = StepMeter()
        self._ranks: dict[int, _Rank] = {}

    @property
    def running(self) -> int:
        return sum(rank.running for rank in self._ranks.values())

    @property
    def used_blocks(self) -> int:
        return sum(rank.used_blocks for rank in self._ranks.values())

    def read(self, message: Mapping[str, Any]) -> None:
        """Raises: KeyError."""
        batch = message["inflightBatchingStats"]
        context, generating = batch["numContextRequests"], batch["numGenRequests"]
        rank = message.get("attentionDpRank", 0)
        self._ranks[rank] = _Rank(context + generating, message["kvCacheStats"]["usedNumBlocks"])
        if generating and not context:
            self.steps.add(generating, message["iterLatencyMS"] / 1e3)
