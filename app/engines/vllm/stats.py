"""vLLM's statistics after each step."""

import time

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from app.engines.speculation import Speculation
from app.engines.steps import StepMeter
from app.engines.vllm.tiers.figures import TierFigures, by_connector

_PULLED = "bytes_transferred"  # of NIXL's connector


class StatLogger(StatLoggerBase):  # type: ignore[misc]  # untyped for us: mypy skips vLLM
    """The last figures of vLLM's scheduler, and some sums."""

    def __init__(self) -> None:
        self.running = 0
        self.kv_usage = 0.0  # share of the blocks that requests hold
        self.prefill_tokens = 0  # of prompts, computed since the start
        self.pulled_tokens = 0  # of prompts, whose KV came from other engines
        self.steps = StepMeter()
        self.speculation = Speculation()
        self._before: dict[int, tuple[int, float]] = {}  # rank → requests after its last step, and the step's end
        self.tiers = TierFigures()
        self._transferred = self._transfer_s = 0.0  # bytes and seconds of pulled KV

    @property
    def transfer_bytes_per_s(self) -> float:
        """The mean speed of pulls; 0: none yet."""
        return self._transferred / self._transfer_s if self._transfer_s else 0.0

    def make(self, _config: VllmConfig, _engine_index: int) -> "StatLogger":
        """vLLM wants a factory."""
        return self

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None and iteration_stats is not None:
            self._step(engine_idx, scheduler_stats.num_running_reqs, iteration_stats, time.monotonic())
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
            for of_connector in by_connector(scheduler_stats.kv_connector_stats):
                if _PULLED in of_connector:
                    self._transferred += sum(of_connector[_PULLED])
                    self._transfer_s += sum(of_connector["transfer_duration"])
                self.tiers.add(of_connector)
            if (drafts := scheduler_stats.spec_decoding_stats) is not None:
                self.speculation.add(drafts.num_drafts, drafts.num_draft_tokens, drafts.num_accepted_tokens_per_pos)
        if iteration_stats is not None:
            self.prefill_tokens += iteration_stats.prompt_token_stats.computed
            self.pulled_tokens += iteration_stats.prompt_token_stats.external_kv_transfer

    def _step(self, rank: int, running: int, iteration: IterationStats, now: float) -> None:
        before, last_end = self._before.get(rank, (0, 0.0))
        self._before[rank] = running, now
        # A step in which exactly the running requests made a token computed no prompt, nor a part of one.
        if before and iteration.num_generation_tokens == before and not iteration.prompt_token_stats.computed:
            self.steps.add(before, now - last_end)

    def log_engine_initialized(self) -> None:
        """Logs nothing; vLLM requires the method."""
