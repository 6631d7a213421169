"""Reads what a model's configuration says of its layers, where TensorRT-LLM's KV events don't. Pure."""

from collections.abc import Mapping
from typing import Any

# Keys of configurations, and kinds of layers in them.
_STATES = ("mamba_", "ssm_", "linear_", "conv_", "hybrid_override_pattern")
_STATE_LAYERS = {"mamba", "linear_attention", "conv", "recurrent"}
_WINDOW_LAYERS = {"sliding_attention", "chunked_attention"}


def has_states(config: Mapping[str, Any]) -> bool:
    return any(key.startswith(_STATES) for key in config) or not _STATE_LAYERS.isdisjoint(_layers(config))


def has_windows(config: Mapping[str, Any], context_len: int) -> bool:
    if layers := _layers(config):
        return not _WINDOW_LAYERS.isdisjoint(layers)
    window = config.get("sliding_window")
    return window is not None and window < context_len and config.get("use_sliding_window") is not False


def _layers(config: Mapping[str, Any]) -> list[Any]:
    return config.get("layer_types") or config.get("layers_block_type") or []
