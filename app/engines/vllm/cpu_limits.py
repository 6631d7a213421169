"""Refuses what vLLM computes wrongly on a CPU, or dies of there."""

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from app.errors import RequestError, SettingsError
from app.messages.job import Sampling


def check_on_cpu(sampling: Sampling, *, speculates: bool, adapters: bool) -> None:
    """Refuses it; on a GPU nothing. `speculates`, `adapters`: whether the pool does, and may have some.

    Raises: RequestError.
    """
    if not current_platform.is_cpu():
        return
    if speculates and sampling.temperature:  # it accepts drafts wrongly, or dies (`top_k`)
        raise RequestError(
            f"temperature={sampling.temperature}: this pool speculates on a CPU, and answers with temperature=0 only.",
            param="temperature",
        )
    if adapters and sampling.prompt_logprobs is not None:  # it takes a prompt's rows for those of all running requests
        raise RequestError(
            "'prompt_logprobs', and 'logprobs' with 'echo': this pool takes adapters on a CPU, where vLLM has none.",
            param="prompt_logprobs",
        )


def check_experts(config: VllmConfig) -> None:
    """Refuses a part of a model's experts in each process on a CPU. Raises: SettingsError."""
    parallel = config.parallel_config
    if current_platform.is_cpu() and parallel.enable_expert_parallel and parallel.world_size_across_dp > 1:
        raise SettingsError(
            "args.enable_expert_parallel=True: on a CPU, vLLM's kernel for experts gets no map of those that a process "
            "has, and ends at the first request; tensor_parallel_size alone works"
        )
