"""Tiny models of today's architectures: configurations, of which vLLM makes up the weights (`load_format: dummy`).

A list, one row for each; what a row doesn't say the class of its configuration does.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

_WINDOW, _ALL, _CHUNK, _STATE = "sliding_attention", "full_attention", "chunked_attention", "linear_attention"
_COMMON = {
    "vocab_size": 49152, "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 32,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "dtype": "float32", "tie_word_embeddings": True,
}  # fmt: skip
_EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32,
    "n_shared_experts": 1, "tie_word_embeddings": False,
}  # fmt: skip
_FEW_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 1, "tie_word_embeddings": False}
_LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_DELTA = {
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
_MAMBA2 = {
    "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 32, "mamba_n_groups": 1, "mamba_expand": 2,
    "mamba_d_conv": 4, "mamba_chunk_size": 64,
}  # fmt: skip
_MAMBA2_H = {
    "ssm_state_size": 32, "mamba_num_heads": 8, "mamba_head_dim": 32, "n_groups": 1, "chunk_size": 64, "expand": 2,
    "conv_kernel": 4, "mlp_hidden_act": "relu2",
}  # fmt: skip
_INDEXED = {"index_topk": 64, "index_head_dim": 64, "index_n_heads": 4}
_ONE_IN_FOUR = {"num_hidden_layers": 4, "sliding_window": 128, "layer_types": [_WINDOW] * 3 + [_ALL]}
_LAST_OF_SIX = {"num_hidden_layers": 6, "sliding_window": 128, "layer_types": [_WINDOW] * 5 + [_ALL]}
_YARN = {
    "rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 1024,
}  # fmt: skip
_TWO = {"num_hidden_layers": 2}
_MEDIA_TOKENS = {
    "audio_token_id": 49140, "image_token_id": 49141, "video_token_id": 49142, "audio_start_token_id": 49143,
    "vision_start_token_id": 49144,
}  # fmt: skip
_NO_MEDIA = {"limit_mm_per_prompt": {"image": 0, "video": 0, "audio": 0}}


class Architecture(NamedTuple):
    about: str  # models that have it
    stem: str  # of its class's name
    type: str
    fields: dict[str, Any]
    args: Mapping[str, Any] = MappingProxyType({})  # of vLLM, in its pool
    ending: str = "ForCausalLM"

    @property
    def name(self) -> str:
        """Its class, as configurations name it."""
        return self.stem + self.ending


ARCHITECTURES = {
    "llama": Architecture("Llama 3", "Llama", "llama", _TWO),
    "llama4": Architecture(
        "Llama 4", "Llama4", "llama4_text",
        _FEW_EXPERTS | {
            "num_hidden_layers": 4, "attention_chunk_size": 256, "layer_types": [_CHUNK] * 3 + [_ALL],
            "no_rope_layers": [1, 1, 1, 0], "interleave_moe_layer_step": 2, "intermediate_size_mlp": 128,
        },
    ),
    "qwen2": Architecture("Qwen2.5", "Qwen2", "qwen2", _TWO),
    "qwen3": Architecture("Qwen3", "Qwen3", "qwen3", _TWO),
    "qwen3_moe": Architecture("Qwen3 MoE", "Qwen3Moe", "qwen3_moe", _TWO | _EXPERTS),
    "qwen3_next": Architecture(
        "Qwen3-Next", "Qwen3Next", "qwen3_next",
        _EXPERTS | _DELTA | {"num_hidden_layers": 4, "layer_types": [_STATE] * 3 + [_ALL]},
    ),
    "qwen3_5": Architecture(  # in bfloat16 only, on a CPU
        "Qwen3.5 and 3.6", "Qwen3_5", "qwen3_5_text",
        _DELTA | {"num_hidden_layers": 4, "layer_types": [_STATE] * 3 + [_ALL]},
    ),
    "qwen3_5_moe": Architecture(
        "Qwen3.5 MoE", "Qwen3_5Moe", "qwen3_5_moe_text",
        _EXPERTS | _DELTA | {"num_hidden_layers": 4, "layer_types": [_STATE] * 3 + [_ALL]},
    ),
    "gemma2": Architecture(
        "Gemma 2", "Gemma2", "gemma2",
        {"num_hidden_layers": 4, "sliding_window": 128, "layer_types": [_WINDOW, _ALL] * 2},
    ),
    "gemma3": Architecture("Gemma 3", "Gemma3", "gemma3_text", _LAST_OF_SIX),
    "gemma3n": Architecture(
        "Gemma 3n", "Gemma3n", "gemma3n_text",
        {
            "num_hidden_layers": 5, "sliding_window": 128, "layer_types": [_WINDOW] * 4 + [_ALL],
            "num_kv_shared_layers": 0, "intermediate_size": [128] * 5, "activation_sparsity_pattern": [0.0] * 5,
            "vocab_size_per_layer_input": 49152, "hidden_size_per_layer_input": 32,
        },
    ),
    "gemma4": Architecture(  # its windows have larger blocks than its other layers
        "Gemma 4", "Gemma4", "gemma4_text",
        _LAST_OF_SIX | {"vocab_size_per_layer_input": 49152, "hidden_size_per_layer_input": 0},
    ),
    "gpt_oss": Architecture(
        "gpt-oss", "GptOss", "gpt_oss",
        _FEW_EXPERTS | {
            "num_hidden_layers": 4, "sliding_window": 128, "layer_types": [_WINDOW, _ALL] * 2, "intermediate_size": 64,
            "rope_parameters": _YARN | {"rope_theta": 150000.0, "truncate": False},
        },
    ),
    "mistral": Architecture("Mistral 7B v0.1", "Mistral", "mistral", _TWO | {"sliding_window": 128}),
    "ministral": Architecture("Ministral", "Ministral", "ministral", _ONE_IN_FOUR),
    "ministral3": Architecture(
        "Ministral 3", "Ministral3", "ministral3",
        _TWO | {
            "rope_parameters": _YARN | {
                "rope_theta": 1e6, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    "mixtral": Architecture("Mixtral", "Mixtral", "mixtral", _TWO | _FEW_EXPERTS | {"sliding_window": None}),
    "phi4": Architecture("Phi-4", "Phi3", "phi3", _TWO | {"tie_word_embeddings": False}),
    "granite": Architecture("Granite 3", "Granite", "granite", _TWO),
    "granite_hybrid": Architecture(
        "Granite 4 hybrid", "GraniteMoeHybrid", "granitemoehybrid",
        _EXPERTS | _MAMBA2 | {
            "num_hidden_layers": 4, "layer_types": ["mamba"] * 3 + ["attention"], "shared_intermediate_size": 64,
        },
    ),
    "falcon_h1": Architecture("Falcon-H1", "FalconH1", "falcon_h1", _TWO | _MAMBA2 | {"mamba_d_ssm": 256}),
    "nemotron_h": Architecture(
        "Nemotron-H", "NemotronH", "nemotron_h",
        _MAMBA2_H | {"layers_block_type": [_STATE, "mlp", _STATE, _ALL, "mlp"]},
    ),
    "lfm2": Architecture(  # convolutions, whose state stands for all tokens before it
        "LFM2", "Lfm2", "lfm2",
        {
            "num_hidden_layers": 4, "layer_types": ["conv"] * 3 + [_ALL], "block_multiple_of": 32, "conv_dim": 128,
            "block_dim": 128,
        },
    ),
    "lfm2_moe": Architecture(
        "LFM2 MoE", "Lfm2Moe", "lfm2_moe",
        _EXPERTS | {
            "num_hidden_layers": 4, "layer_types": ["conv"] * 3 + [_ALL], "conv_dim": 128, "block_dim": 128,
            "num_dense_layers": 1, "tie_word_embeddings": True,
        },
    ),
    "olmo2": Architecture("OLMo 2", "Olmo2", "olmo2", _TWO),
    "olmo3": Architecture("OLMo 3", "Olmo3", "olmo3", _ONE_IN_FOUR),
    "cohere2": Architecture("Command A, R7B", "Cohere2", "cohere2", _ONE_IN_FOUR),
    "exaone4": Architecture("EXAONE 4", "Exaone4", "exaone4", _ONE_IN_FOUR | {"sliding_window_pattern": "LLLG"}),
    "smollm3": Architecture("SmolLM3", "SmolLM3", "smollm3", _TWO),
    "seed_oss": Architecture("Seed-OSS", "SeedOss", "seed_oss", _TWO),
    "glm4": Architecture("GLM-4", "Glm4", "glm4", _TWO),
    "glm4_moe": Architecture("GLM-4.5 to 4.7", "Glm4Moe", "glm4_moe", _TWO | _EXPERTS | {"first_k_dense_replace": 1}),
    "ernie4_5": Architecture("ERNIE 4.5", "Ernie4_5", "ernie4_5", _TWO),
    "ernie4_5_moe": Architecture(
        "ERNIE 4.5 MoE", "Ernie4_5_Moe", "ernie4_5_moe",
        _TWO | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 1},
    ),
    "hunyuan": Architecture("Hunyuan dense", "HunYuanDenseV1", "hunyuan_v1_dense", _TWO),
    "deepseek_v3": Architecture(  # in bfloat16 only, on a CPU
        "DeepSeek V3, Kimi K2", "DeepseekV3", "deepseek_v3", _TWO | _EXPERTS | _LATENT
    ),
    "minimax_m2": Architecture(
        "MiniMax M2", "MiniMaxM2", "minimax_m2",
        _TWO | _EXPERTS | {"rotary_dim": 32, "scoring_func": "sigmoid", "use_routing_bias": True},
    ),
    "apertus": Architecture("Apertus", "Apertus", "apertus", _TWO),
    "stablelm": Architecture("StableLM", "StableLm", "stablelm", _TWO),
    "starcoder2": Architecture("StarCoder2", "Starcoder2", "starcoder2", _TWO | {"sliding_window": None}),
    "gpt_neox": Architecture("Pythia", "GPTNeoX", "gpt_neox", _TWO),
    "phi": Architecture("Phi-2", "Phi", "phi", _TWO),
    "phimoe": Architecture("Phi-3.5 MoE", "PhiMoE", "phimoe", _TWO | _FEW_EXPERTS | {"num_experts_per_tok": 2}),
    "olmoe": Architecture("OLMoE", "Olmoe", "olmoe", _TWO | _EXPERTS),
    "dots1": Architecture(
        "dots.llm1", "Dots1", "dots1",
        _TWO | _EXPERTS | {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    ),
    "arcee": Architecture("AFM", "Arcee", "arcee", _TWO),
    "afmoe": Architecture(
        "Trinity", "Afmoe", "afmoe",
        _ONE_IN_FOUR | _EXPERTS | {"num_dense_layers": 1, "num_expert_groups": 1, "num_limited_groups": 1},
    ),
    "mistral4": Architecture(
        "Mistral 4", "Mistral4", "mistral4",
        _TWO | _EXPERTS | _LATENT | {
            "first_k_dense_replace": 0, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "head_dim": 128,
        },
    ),
    "glm4_moe_lite": Architecture("GLM-4.7 Flash", "Glm4MoeLite", "glm4_moe_lite", _TWO | _EXPERTS | _LATENT),
    "glm5": Architecture("GLM-5", "GlmMoeDsa", "glm_moe_dsa", _TWO | _EXPERTS | _LATENT | _INDEXED),
    "glm5_next": Architecture(
        "GLM-5.3", "Glm5Next", "glm5_next_text",
        _EXPERTS | _LATENT | _INDEXED | {
            "num_hidden_layers": 4, "layer_types": [_STATE] * 3 + ["indexed_attention"], "linear_head_dim": 32,
            "linear_num_heads": 4, "qk_rope_head_dim": 0, "qk_nope_head_dim": 64, "head_dim": 0, "index_kpool": 16,
            "mlp_layer_types": ["dense"] + ["sparse"] * 3,
        },
    ),
    "deepseek_v32": Architecture("DeepSeek V3.2", "DeepseekV32", "deepseek_v32", _TWO | _EXPERTS | _LATENT | _INDEXED),
    "deepseek_v4": Architecture(
        "DeepSeek V4", "DeepseekV4", "deepseek_v4",
        _EXPERTS | _INDEXED | {
            "num_hidden_layers": 4, "q_lora_rank": 32, "o_lora_rank": 32, "o_groups": 2, "num_key_value_heads": 1,
            "head_dim": 512, "qk_rope_head_dim": 64, "sliding_window": 128, "hidden_act": "silu", "swiglu_limit": 10.0,
            "rms_norm_eps": 1e-6, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20, "num_hash_layers": 1,
            "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
            "compress_ratios": [0, 0, 4, 128], "compress_rope_theta": 160000.0, "rope_theta": 10000.0,
            "index_head_dim": 128,
            "layer_types": [_WINDOW, _WINDOW, "compressed_sparse_attention", "heavily_compressed_attention"],
        },
    ),
    "kimi_linear": Architecture(
        "Kimi Linear", "KimiLinear", "kimi_linear",
        _EXPERTS | _LATENT | {
            "num_hidden_layers": 4, "q_lora_rank": None, "mla_use_nope": True, "num_experts_per_token": 2,
            "num_shared_experts": 1, "moe_layer_freq": 1, "num_expert_group": 1, "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 1.0, "use_grouped_topk": True,
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e4, "model_max_length": 4096,
            "linear_attn_config": {
                "full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 128, "num_heads": 2,
                "short_conv_kernel_size": 4,
            },
        },
    ),
    "nemotron3": Architecture(
        "Nemotron 3 Nano", "NemotronH", "nemotron_h",
        _EXPERTS | _MAMBA2_H | {"layers_block_type": [_STATE, "moe", _STATE, _ALL, "moe"]},
    ),
    "bamba": Architecture("Bamba", "Bamba", "bamba", _MAMBA2 | {"num_hidden_layers": 4, "attn_layer_indices": [3]}),
    "zamba2": Architecture(
        "Zamba 2", "Zamba2", "zamba2",
        {
            "num_hidden_layers": 4, "layers_block_type": ["mamba", "mamba", "hybrid", "mamba"], "mamba_d_state": 32,
            "mamba_expand": 2, "mamba_ngroups": 1, "n_mamba_heads": 8, "num_mem_blocks": 1, "chunk_size": 64,
            "attention_hidden_size": 256, "attention_head_dim": 64, "num_key_value_heads": 4,
        },
    ),
    "mamba2": Architecture(
        "Mamba 2", "Mamba2", "mamba2",
        _TWO | {
            "num_heads": 8, "head_dim": 32, "state_size": 32, "n_groups": 1, "expand": 2, "chunk_size": 64,
            "conv_kernel": 4,
        },
    ),
    "jamba": Architecture(
        "Jamba", "Jamba", "jamba",
        _EXPERTS | {
            "num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 3, "mamba_d_state": 16,
            "mamba_dt_rank": 16,
        },
    ),
    "olmo_hybrid": Architecture(
        "OLMo Hybrid", "OlmoHybrid", "olmo_hybrid",
        _DELTA | {"num_hidden_layers": 4, "layer_types": [_STATE] * 3 + [_ALL]},
    ),
    "minimax_text01": Architecture(
        "MiniMax-Text-01", "MiniMax", "minimax",
        _EXPERTS | {"num_hidden_layers": 4, "layer_types": [_STATE] * 3 + [_ALL]},
    ),
    "qwen3_omni": Architecture(
        "Qwen3-Omni", "Qwen3OmniMoe", "qwen3_omni_moe",
        {
            "enable_audio_output": False,
            "thinker_config": _MEDIA_TOKENS | {
                "model_type": "qwen3_omni_moe_thinker",
                "text_config": _COMMON | _TWO | _EXPERTS | {
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5]},
                },
                "vision_config": {
                    "depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 128,
                    "deepstack_visual_indexes": [0], "num_position_embeddings": 256, "image_size": 256,
                    "apply_vit_abs_pos_embed": True,
                },
                "audio_config": {
                    "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "d_model": 64,
                    "output_dim": 128, "downsample_hidden_size": 32,
                },
            },
        },
        _NO_MEDIA, "ForConditionalGeneration",
    ),
}  # fmt: skip


def written(name: str, made: Path, tokenizer: Path) -> Path:
    """The model's folder, with the tokenizer of the model in the other one."""
    row = ARCHITECTURES[name]
    config = _COMMON | row.fields | {"architectures": [row.name], "model_type": row.type}
    (made / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (made / file).symlink_to((tokenizer / file).resolve())
    return made
