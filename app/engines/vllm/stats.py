"""What vLLM tells of itself after each step."""

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats


class StatLogger(StatLoggerBase):  # type: ignore[misc]  # untyped for us: mypy skips vLLM
    """The last figures of vLLM's scheduler, and some sums."""

    def __init__(self) -> None:
        self.running = 0
        self.kv_usage = 0.0  # share of the blocks that requests hold
        self.prefill_tokens = 0  # of prompts, computed since the start
        self.pulled_tokens = 0  # of prompts, whose KV came from other engines
        self._transferred = self._transfer_s = 0.0  # bytes of that KV, and how long it took

    @property
    def transfer_bytes_per_s(self) -> float:
        """On average; 0: nothing came yet."""
        return self._transferred / self._transfer_s if self._transfer_s else 0.0

    def make(self, _config: VllmConfig, _engine_index: int) -> "StatLogger":
        """vLLM wants a factory."""
        return self

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,  # noqa: ARG002  vLLM names them
        engine_idx: int = 0,  # noqa: ARG002
    ) -> None:
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
            if scheduler_stats.kv_connector_stats:
                self._transferred += sum(scheduler_stats.kv_connector_stats["bytes_transferred"])
                self._transfer_s += sum(scheduler_stats.kv_connector_stats["transfer_duration"])
        if iteration_stats is not None:
            self.prefill_tokens += iteration_stats.prompt_token_stats.computed
            self.pulled_tokens += iteration_stats.prompt_token_stats.external_kv_transfer

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
