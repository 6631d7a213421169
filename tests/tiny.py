"""A tiny model whose four heads two devices can share: SmolLM2 has nine. Random weights, always the same."""

import json
import shutil
from functools import partial
from pathlib import Path

from app.demo_models.model_folder import prepare
from tests.shallow import shallow_model


def tiny_model() -> Path:
    """Made beside the shallow one, with its tokenizer, if it isn't there yet."""
    source = shallow_model()
    path = source.with_name("tiny-4-heads")
    prepare(path, partial(_write, source))
    return path


def _write(source: Path, made: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.copytree(source, made, ignore=shutil.ignore_patterns("*.safetensors", "config.json"), dirs_exist_ok=True)
    vocabulary = json.loads((source / "config.json").read_text())["vocab_size"]
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=False, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).float().save_pretrained(made)
