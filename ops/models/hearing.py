"""Tiny models that hear, as in `seeing`; one of them sees as well."""

from typing import Any

from ops.models.sight import EYES, Fields, IdOf, Parts, Seeing

_EARS = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_MELS = {"feature_size": 128, "return_attention_mask": True}


def _flamingo(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    config = t.AudioFlamingo3Config(
        text_config=text | {"model_type": "qwen2"}, audio_config=_EARS, audio_token_id=id_of("<sound>")
    )
    return Parts(config, t.AudioFlamingo3Processor(t.WhisperFeatureExtractor(**_MELS), tokenizer))


def _glm(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    config = t.GlmAsrConfig(
        text_config=text | {"model_type": "llama"},
        audio_config=_EARS | {"intermediate_size": 256},
        audio_token_id=id_of("<|pad|>"),
    )
    return Parts(config, t.GlmAsrProcessor(t.WhisperFeatureExtractor(**_MELS), tokenizer))


def _omni(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]}
    ears = {
        "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "output_dim": 128,
    }  # fmt: skip
    eyes = {"depth": 2, "num_heads": 2, "patch_size": 14, "out_hidden_size": 128, "fullatt_block_indexes": [1]}
    thinker = {
        "text_config": text | {"rope_parameters": rope},
        "audio_config": ears,
        "vision_config": EYES | eyes,
        "audio_token_index": id_of("<|AUDIO|>"),
        "image_token_index": id_of("<|IMAGE|>"),
        "video_token_index": id_of("<|VIDEO|>"),
        "audio_start_token_id": id_of("<|audio_bos|>"),
        "audio_end_token_id": id_of("<|audio_eos|>"),
        "vision_start_token_id": id_of("<|vision_bos|>"),
        "vision_end_token_id": id_of("<|vision_eos|>"),
    }
    config = t.Qwen2_5OmniConfig(thinker_config=thinker)
    size = {"shortest_edge": 65_536, "longest_edge": 1_048_576}
    images = t.Qwen2VLImageProcessor(patch_size=14, merge_size=2, temporal_patch_size=2, size=size)
    videos = t.Qwen2VLVideoProcessor(patch_size=14, merge_size=2, temporal_patch_size=2)
    return Parts(config, t.Qwen2_5OmniProcessor(images, videos, t.WhisperFeatureExtractor(**_MELS), tokenizer))


def _omni3(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    ears = {
        "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "output_dim": 128,
        "downsample_hidden_size": 32,
    }  # fmt: skip
    eyes = {
        "depth": 2, "num_heads": 2, "patch_size": 16, "image_size": 256, "out_hidden_size": 128,
        "num_position_embeddings": 256, "apply_vit_abs_pos_embed": True,
        "deepstack_visual_indexes": [0],
    }  # fmt: skip
    thinker = {
        "text_config": text | experts | {"rope_parameters": rope},
        "audio_config": ears,
        "vision_config": EYES | eyes,
        "audio_token_id": id_of("<|AUDIO|>"),
        "image_token_id": id_of("<|IMAGE|>"),
        "video_token_id": id_of("<|VIDEO|>"),
        "audio_start_token_id": id_of("<|audio_bos|>"),
        "audio_end_token_id": id_of("<|audio_eos|>"),
        "vision_start_token_id": id_of("<|vision_bos|>"),
        "vision_end_token_id": id_of("<|vision_eos|>"),
    }
    config = t.Qwen3OmniMoeConfig(thinker_config=thinker)
    size = {"shortest_edge": 65_536, "longest_edge": 1_048_576}
    images = t.Qwen2VLImageProcessor(patch_size=16, merge_size=2, temporal_patch_size=2, size=size)
    videos = t.Qwen2VLVideoProcessor(patch_size=16, merge_size=2, temporal_patch_size=2)
    return Parts(config, t.Qwen3OmniMoeProcessor(images, videos, t.WhisperFeatureExtractor(**_MELS), tokenizer))


_OMNI = {
    "audio_token": "<|AUDIO|>", "image_token": "<|IMAGE|>", "video_token": "<|VIDEO|>",
    "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
}  # fmt: skip
HEARING = {
    "audioflamingo3": Seeing(
        "AudioFlamingo3ForConditionalGeneration", {"audio_token": "<sound>"}, "", _flamingo, {"audio": 1},
        sound="<sound>",
    ),
    "glmasr": Seeing(
        "GlmAsrForConditionalGeneration",
        {"begin": "<|begin_of_audio|>", "audio_token": "<|pad|>", "end": "<|end_of_audio|>"},
        "",
        _glm,
        {"audio": 1},
        sound="<|begin_of_audio|><|pad|><|end_of_audio|>",
    ),
    "qwen2_5_omni": Seeing(
        "Qwen2_5OmniModel",
        _OMNI,
        "<|vision_bos|><|IMAGE|><|vision_eos|>",
        _omni,
        {"image": 4, "audio": 2, "video": 0},
        sound="<|audio_bos|><|AUDIO|><|audio_eos|>",
        film="<|vision_bos|><|VIDEO|><|vision_eos|>",
    ),
    "qwen3_omni_moe": Seeing(
        "Qwen3OmniMoeForConditionalGeneration",
        _OMNI,
        "<|vision_bos|><|IMAGE|><|vision_eos|>",
        _omni3,
        {"image": 4, "audio": 2, "video": 0},
        sound="<|audio_bos|><|AUDIO|><|audio_eos|>",
        film="<|vision_bos|><|VIDEO|><|vision_eos|>",
    ),
}  # fmt: skip
