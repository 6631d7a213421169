"""A diffusion language model, 40 MB of random weights: it answers nonsense, always the same, four tokens at once."""

import json
from pathlib import Path

from app.demo_models.model_folder import prepare

_MODELS = Path(__file__).parent.parent / ".xylem/models"
BLOCK = 4  # tokens, and the mask's id: both are SGLang's, by the architecture's name
MASK = 151_669
_VOCABULARY = 151_680
_WIDTH, _INNER, _LAYERS, _HEADS, _KV_HEADS, _HEAD = 64, 128, 2, 2, 1, 32


def random_dllm() -> Path:
    """Made beside the other models, if it isn't there yet."""
    path = _MODELS / "random-sdar"
    prepare(path, _write)
    return path


def _write(made: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(_MODELS / "SmolLM2-135M-Instruct")
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> "torch.Tensor":
        return torch.randn(*shape, generator=generator) * 0.15

    words = random(_VOCABULARY, _WIDTH)
    words[len(tokenizer) : MASK] = 0  # says no token that has no text
    words[MASK + 1 :] = 0
    head = words.clone()
    head[MASK] = 0
    weights = {"model.embed_tokens.weight": words, "model.norm.weight": torch.ones(_WIDTH), "lm_head.weight": head}
    for number in range(_LAYERS):
        layer = f"model.layers.{number}."
        weights |= {
            f"{layer}self_attn.q_proj.weight": random(_HEADS * _HEAD, _WIDTH),
            f"{layer}self_attn.k_proj.weight": random(_KV_HEADS * _HEAD, _WIDTH),
            f"{layer}self_attn.v_proj.weight": random(_KV_HEADS * _HEAD, _WIDTH),
            f"{layer}self_attn.o_proj.weight": random(_WIDTH, _HEADS * _HEAD),
            f"{layer}self_attn.q_norm.weight": torch.ones(_HEAD),
            f"{layer}self_attn.k_norm.weight": torch.ones(_HEAD),
            f"{layer}mlp.gate_proj.weight": random(_INNER, _WIDTH),
            f"{layer}mlp.up_proj.weight": random(_INNER, _WIDTH),
            f"{layer}mlp.down_proj.weight": random(_WIDTH, _INNER),
            f"{layer}input_layernorm.weight": torch.ones(_WIDTH),
            f"{layer}post_attention_layernorm.weight": torch.ones(_WIDTH),
        }
    save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(made)
    config = {
        "architectures": ["SDARForCausalLM"], "model_type": "qwen3", "hidden_size": _WIDTH, "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS, "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD, "vocab_size": _VOCABULARY, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "attention_bias": False, "tie_word_embeddings": False, "hidden_act": "silu",
        "torch_dtype": "float32", "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    (made / "config.json").write_text(json.dumps(config))
