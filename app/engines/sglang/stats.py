"""Reads what SGLang tells of itself after each step, in shared memory."""

from typing import Any

from msgspec import Struct

from app.engines.steps import StepFit, StepMeter

_US = 1e-6


class Figures(Struct, frozen=True):
    """Figures of all ranks together."""

    running: int = 0
    used_tokens: int = 0  # held by requests; what is only cached is free
    prefill_tokens: int = 0  # of prompts, computed since the start
    steps: StepFit = StepFit()


class Figuring:
    def __init__(self) -> None:
        self._steps = StepMeter()  # of all ranks, which are alike
        self._before: dict[int, list[float]] = {}  # rank → the sums that were read last

    def read(self, snapshots: list[Any]) -> Figures:
        """`snapshots`: SGLang's LoadSnapshot of each rank."""
        for snapshot in snapshots:
            if snapshot.decode_moments:
                self._count(snapshot.dp_rank, snapshot.decode_moments)
        return Figures(
            running=sum(s.num_running_reqs for s in snapshots),
            used_tokens=sum(s.num_used_tokens for s in snapshots),
            prefill_tokens=sum(s.total_prefill_uncached_tokens for s in snapshots),
            steps=self._steps.read(),
        )

    def _count(self, rank: int, sums: list[float]) -> None:
        """Counts a rank's steps that computed no prompt.

        `sums`, over all of them: of 1, requests, µs, requests squared, requests · µs, tokens.
        """
        before = self._before.get(rank) or [0.0] * len(sums)
        self._before[rank] = sums
        count, requests, us, squares, products, _ = (now - then for now, then in zip(sums, before, strict=True))
        if count > 0:
            self._steps.add_sums(count, requests, squares, us * _US, products * _US)
