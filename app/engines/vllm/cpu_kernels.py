"""Limits of vLLM's kernels for CPUs, by a model's configuration: other defaults for its pool's args."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import structlog

_BFLOAT16_ONLY = ("linear_num_key_heads", "kv_lora_rank")  # gated delta networks (Qwen3.5), and MLA (DeepSeek)
# Mamba 2's heads, as Granite and Bamba, Nemotron-H and Zamba 2 call them.
_MAMBA2 = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")

log = structlog.get_logger(__name__)


def kernels_need(model: Path, names: Collection[str]) -> dict[str, Any]:
    """Defaults of AsyncEngineArgs for what is not in `names`. Logs what an operator would miss."""
    try:
        config = json.loads((model / "config.json").read_text())
    except (OSError, ValueError):  # vLLM itself says what is wrong with it
        return {}
    parts = [config, config.get("text_config") or {}]
    arguments: dict[str, Any] = {}
    if any(part.get(name) for part in parts for name in _BFLOAT16_ONLY):
        arguments["dtype"] = "bfloat16"
    if "enable_prefix_caching" not in names and any(map(_has_mamba2, parts)):
        arguments["enable_prefix_caching"] = False
        log.warning(
            "prefix_caching_off",
            setting="args.enable_prefix_caching: false",
            reason="on a CPU vLLM's Mamba 2 tells no states between tokens, and its engine dies of a cached prefix",
        )
    return arguments


def _has_mamba2(part: Mapping[str, Any]) -> bool:
    """Granite 4 has the same fields where all its layers attend."""
    has_field = any(part.get(name) for name in _MAMBA2) or part.get("model_type") == "mamba2"
    return has_field and "mamba" in part.get("layer_types", ["mamba"])
