"""The speed of a simulated engine."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One prompt is computed at a time, in chunks, beside the running answers; a step makes a token of each of these.

    A step takes `step_s`, or as long as its chunk of a prompt; and `request_s` for each answer, and `token_s` for each
    token of their contexts.
    """

    block_size: int = 512  # tokens
    cache_blocks: int = 4000
    max_running: int = 256
    prefill_per_s: float = 10_000.0  # tokens
    chunk: int = 2048  # tokens
    step_s: float = 0.015
    request_s: float = 1e-4
    token_s: float = 2.5e-8
    store_s: float = 0.0  # in which a block comes from a store that all workers share; 0: there is none

    def work_s(self, prompt: int, answer: int, cached: int) -> float:
        """Seconds by which a request of so many tokens fills a worker."""
        context = prompt + answer // 2
        return (prompt - cached) / self.prefill_per_s + answer * (self.request_s + self.token_s * context)

    def step_of(self, running: int, context: int) -> float:
        """Seconds of a step without what a prompt takes in it."""
        return self.request_s * running + self.token_s * context
