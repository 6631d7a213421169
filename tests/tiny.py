"""Tiny models whose four heads two devices can share: SmolLM2 has nine. Random weights, always the same."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from app.demo_models.model_folder import prepare
from tests.shallow import LAYERS, shallow_model

WIDTHS = (256, 128)  # of what its layers' queries and values are
EXPERTS = 8


def tiny_model() -> Path:
    """Made beside the shallow one, with its tokenizer, if it isn't there yet."""
    return _made("tiny-4-heads", "LlamaConfig", "LlamaForCausalLM", intermediate_size=512)


def tiny_experts() -> Path:
    """A Qwen3-MoE of eight experts, made beside it in the same way: each token goes to two of them."""
    experts = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}
    return _made("tiny-experts", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", intermediate_size=128, **experts)


def _made(name: str, config: str, model: str, **fields: Any) -> Path:
    source = shallow_model()
    path = source.with_name(name)
    prepare(path, partial(_write, source, config, model, fields))
    return path


def _write(source: Path, config_class: str, model_class: str, fields: dict[str, Any], made: Path) -> None:
    import torch
    import transformers

    shutil.copytree(source, made, ignore=shutil.ignore_patterns("*.safetensors", "config.json"), dirs_exist_ok=True)
    vocabulary = json.loads((source / "config.json").read_text())["vocab_size"]
    config = getattr(transformers, config_class)(
        vocab_size=vocabulary, hidden_size=WIDTHS[0], num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=False, bos_token_id=1,
        eos_token_id=2, **fields,
    )  # fmt: skip
    torch.manual_seed(0)
    getattr(transformers, model_class)(config).float().save_pretrained(made)
