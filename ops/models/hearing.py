"""Tiny models that hear, as in `seeing`; one of them sees as well."""

from ops.models.sight import EYES, Fields, Id, Seeing, Text

_EARS = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_OMNI_EARS = {
    "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "output_dim": 128,
}  # fmt: skip
_WHISPER = {"WhisperFeatureExtractor": {"feature_size": 128, "return_attention_mask": True}}
_OMNI = {
    "audio_token": "<|AUDIO|>", "image_token": "<|IMAGE|>", "video_token": "<|VIDEO|>",
    "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
}  # fmt: skip
_BORDERS = {
    "audio_start_token_id": Id("<|audio_bos|>"), "audio_end_token_id": Id("<|audio_eos|>"),
    "vision_start_token_id": Id("<|vision_bos|>"), "vision_end_token_id": Id("<|vision_eos|>"),
}  # fmt: skip


def _omni(
    stem: str, suffix: str, patch: int, *, eyes: Fields, ears: Fields, text: Fields, rope: Fields, ending: str
) -> Seeing:
    """`suffix`: of the fields that name tokens."""
    positions = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], **rope}
    frames = {"patch_size": patch, "merge_size": 2, "temporal_patch_size": 2}
    signs = {"audio": "<|AUDIO|>", "image": "<|IMAGE|>", "video": "<|VIDEO|>"}
    thinker = {
        "text_config": Text(text, rope_parameters=positions), "audio_config": _OMNI_EARS | ears,
        "vision_config": EYES | {"depth": 2, "num_heads": 2, "patch_size": patch, "out_hidden_size": 128} | eyes,
        **{f"{kind}_token_{suffix}": Id(token) for kind, token in signs.items()}, **_BORDERS,
    }  # fmt: skip
    return Seeing(
        stem, _OMNI, "<|vision_bos|><|IMAGE|><|vision_eos|>", {"thinker_config": thinker},
        {
            "Qwen2VLImageProcessor": frames | {"size": {"shortest_edge": 65_536, "longest_edge": 1_048_576}},
            "Qwen2VLVideoProcessor": frames, **_WHISPER,
        },
        limits={"image": 4, "audio": 2, "video": 0}, sound="<|audio_bos|><|AUDIO|><|audio_eos|>",
        film="<|vision_bos|><|VIDEO|><|vision_eos|>", ending=ending,
    )  # fmt: skip


HEARING = {
    "audioflamingo3": Seeing(
        "AudioFlamingo3", {"audio_token": "<sound>"}, "",
        {"text_config": Text(model_type="qwen2"), "audio_config": _EARS, "audio_token_id": Id("<sound>")},
        _WHISPER, limits={"audio": 1}, sound="<sound>",
    ),
    "glmasr": Seeing(
        "GlmAsr", {"begin": "<|begin_of_audio|>", "audio_token": "<|pad|>", "end": "<|end_of_audio|>"}, "",
        {
            "text_config": Text(model_type="llama"), "audio_config": _EARS | {"intermediate_size": 256},
            "audio_token_id": Id("<|pad|>"),
        },
        _WHISPER, limits={"audio": 1}, sound="<|begin_of_audio|><|pad|><|end_of_audio|>",
    ),
    "qwen2_5_omni": _omni(
        "Qwen2_5Omni", "index", 14, eyes={"fullatt_block_indexes": [1]}, ears={}, text={}, rope={}, ending="Model",
    ),
    "qwen3_omni_moe": _omni(
        "Qwen3OmniMoe", "id", 16,
        eyes={
            "image_size": 256, "num_position_embeddings": 256, "apply_vit_abs_pos_embed": True,
            "deepstack_visual_indexes": [0],
        },
        ears={"downsample_hidden_size": 32},
        text={"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        rope={"mrope_interleaved": True}, ending="ForConditionalGeneration",
    ),
}  # fmt: skip
