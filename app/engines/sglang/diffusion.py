"""Diffusion language models: what SGLang can't do with them, and would not say.

They make a block of tokens at once, in several rounds, of which each fixes those that the model is certain of.
"""

from collections.abc import Mapping
from typing import Any

from sglang.srt.dllm.config import DllmConfig
from sglang.srt.server_args import ServerArgs

from app.engines.base import GenerateRequest
from app.errors import RequestError, SettingsError
from app.pools.schema import Pool

_DRAWING = ("Gemma4Renoise",)  # algorithms that draw tokens; others take the likeliest, whatever the temperature


def diffuses(fields: Mapping[str, Any]) -> bool:
    """`fields`: of ServerArgs."""
    return fields.get("dllm_algorithm") is not None


def keeps_seeds(fields: Mapping[str, Any]) -> bool:
    """Whether the same seed gives the same answer: where nothing is drawn, each one does."""
    return diffuses(fields) and fields["dllm_algorithm"] not in _DRAWING


def check_settings(pool: Pool, fields: Mapping[str, Any]) -> None:
    """Refuses settings that SGLang would ignore with a warning. Raises: SettingsError."""
    if not diffuses(fields):
        return
    if pool.role != "both":
        raise SettingsError(f"role={pool.role}: of a diffusion language model, prefill and decode can't be apart")
    if fields.get("enable_lora"):
        raise SettingsError("args.enable_lora=true: SGLang's diffusion language models take no adapters")


def check_block(pool: Pool, fields: Mapping[str, Any]) -> None:
    """SGLang would make its pages the model's block, with a warning, and all our counts would be wrong.

    Raises: SettingsError.
    """
    if not diffuses(fields):
        return
    try:
        block = DllmConfig.from_server_args(ServerArgs(**fields)).block_size
    except (RuntimeError, ValueError, TypeError, OSError) as exc:
        raise SettingsError(f"args.dllm_algorithm={fields['dllm_algorithm']!r}: {exc}") from exc
    if pool.block_size != block:
        raise SettingsError(f"block_size={pool.block_size}: has to be the diffusion model's own, {block}")


def check_diffusion(request: GenerateRequest) -> None:
    """Refuses parameters that SGLang would ignore in silence: its algorithms give token ids alone, and mask nothing.

    Raises: RequestError.
    """
    s = request.sampling
    params = {
        "logprobs": s.logprobs is not None,
        "prompt_logprobs": s.prompt_logprobs is not None,
        "response_format": s.grammar is not None,
        "logit_bias": bool(s.logit_bias),
        "min_tokens": s.min_tokens > 0,
        "presence_penalty": s.presence_penalty != 0,
        "frequency_penalty": s.frequency_penalty != 0,
        "repetition_penalty": s.repetition_penalty != 1,
    }
    for param, is_asked in params.items():
        if is_asked:
            raise RequestError(f"{param}: not supported by diffusion language models.", param=param)
