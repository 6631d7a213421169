"""The requests that speculation would spoil."""

from vllm.platforms import current_platform

from app.errors import RequestError
from app.messages import Sampling


def check_speculation(sampling: Sampling) -> None:
    """Raises: RequestError for a sampled answer on a CPU: there vLLM accepts drafts wrongly, or dies (`top_k`)."""
    if current_platform.is_cpu() and sampling.temperature:
        raise RequestError(
            f"temperature={sampling.temperature}: this pool speculates on a CPU, and answers with temperature=0 only.",
            param="temperature",
        )
