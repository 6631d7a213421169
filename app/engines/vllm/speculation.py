"""Speculation: how much of what was drafted was accepted, and the requests that it would spoil."""

from vllm.platforms import current_platform
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from app.errors import RequestError
from app.messages import Sampling


class Speculation:
    """Sums since the start."""

    def __init__(self) -> None:
        self.drafts = self.drafted = 0  # how often tokens were drafted, and how many
        self.accepted: list[int] = []  # of them, by position in the draft

    def add(self, step: SpecDecodingStats) -> None:
        self.drafts += step.num_drafts
        self.drafted += step.num_draft_tokens
        by_position = step.num_accepted_tokens_per_pos
        self.accepted += [0] * (len(by_position) - len(self.accepted))
        for position, count in enumerate(by_position):
            self.accepted[position] += count


def check_speculation(sampling: Sampling) -> None:
    """Raises: RequestError for a sampled answer on a CPU: there vLLM accepts drafts wrongly, or dies (`top_k`)."""
    if current_platform.is_cpu() and sampling.temperature:
        raise RequestError(
            f"temperature={sampling.temperature}: this pool speculates on a CPU, and answers with temperature=0 only.",
            param="temperature",
        )
