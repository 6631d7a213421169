"""Small LoRA adapters: random, but always the same for a seed."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.shallow import LAYERS

STORY = "Once upon a time there was a cat who lived in a house by the sea, and every morning it went down to the water."
# What transformers 5.19 says behind it, with the products of the adapter of seed 0 or 1 added to the shallow model's
# weights. (In a process of its own: SGLang changes what it computes.)
MERGED = {"one": [365, 365, 339, 339, 365, 365, 365, 365], "two": [284] * 8}
_HIDDEN, _KV = 576, 192  # of SmolLM2


def make_adapter(
    folder: Path,
    seed: int,
    rank: int = 8,
    scale: float = 0.2,
    layers: int = LAYERS,
    *,
    widths: tuple[int, int] = (_HIDDEN, _KV),
) -> Path:
    """Makes an adapter for the model of `tests/shallow.py`, or for one with other layers. `widths`: of q and v."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(layers):
        for name, out in zip(("q_proj", "v_proj"), widths, strict=True):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("lora_A", (rank, widths[0])), ("lora_B", (out, rank))):
                weights[f"{at}.{part}.weight"] = (random.standard_normal(shape) * scale).astype(np.float32)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "bias": "none", "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "SmolLM2-135M-Instruct",
        "inference_mode": True, "fan_in_fan_out": False, "modules_to_save": None, "init_lora_weights": True,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def tiny_adapter(folder: Path, weights: str, rank: int = 8) -> Path:
    """Makes an adapter for the mock, to which weights are any bytes."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank}))
    (folder / "adapter_model.safetensors").write_text(weights)
    return folder
