"""Tiny models that see, of today's types: configuration, tokenizer and processor, of which vLLM makes up the weights.

A list, however long: what a type needs, it alone needs. What a row does not say the classes of transformers do.
"""

from pathlib import Path
from typing import Any

from ops.models.deepseek import DEEPSEEK
from ops.models.hearing import HEARING
from ops.models.sight import EYES, HALF, Above, Id, Seeing, Text, ids, write

_IMAGE = {"image_token": "<image>"}
_CLIP = EYES | {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14, "projection_dim": 64}
# Of processors of pictures that CLIP sees.
_OF_CLIP: dict[str, Any] = _IMAGE | {
    "patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
}  # fmt: skip
_CLIP_SIZE = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
_CLIP_PLACES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_PLACES = [[384, 384], [384, 768], [768, 384], [768, 768], [384, 1152], [1152, 384]]
_ROWS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
_LINES = {"one": "\n", "two": "\n\n", "three": "\n\n\n", "four": "\n\n\n\n"}
_TILES = {
    "fake_image_token": "<fake_token_around_image>", **_IMAGE, "global_image_token": "<global-img>",
    "end": "<end_of_utterance>",
}  # fmt: skip
_BORDERS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
_SOUND_BORDERS = {
    "boa_token": "<start_of_audio>", "eoa_token": "<end_of_audio>", "audio_token": "<audio_soft_token>",
}  # fmt: skip
_QWEN = {
    "vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>", "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}  # fmt: skip
_QWEN_SIGN = "<|vision_start|><|image_pad|><|vision_end|>"
_QWEN_FILM = "<|vision_start|><|video_pad|><|vision_end|>"
_QWEN_EYES = {
    "depth": 2, "num_heads": 2, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
}  # fmt: skip
_QWEN2_EYES = _QWEN_EYES | {"embed_dim": 64, "hidden_size": 128, "mlp_ratio": 2, "patch_size": 14, "in_chans": 3}
_QWEN25_EYES = _QWEN_EYES | {
    "hidden_size": 64, "intermediate_size": 64, "patch_size": 14, "in_chans": 3, "out_hidden_size": 128,
    "window_size": 112, "fullatt_block_indexes": [1],
}  # fmt: skip
_QWEN3_EYES = _QWEN_EYES | {
    "hidden_size": 64, "intermediate_size": 64, "patch_size": 16, "out_hidden_size": 128,
    "num_position_embeddings": 256, "deepstack_visual_indexes": [0],
}  # fmt: skip
_QWEN35_EYES = EYES | {
    "depth": 2, "num_heads": 2, "patch_size": 16, "out_hidden_size": 128, "num_position_embeddings": 256,
    "deepstack_visual_indexes": [],
}  # fmt: skip
_FRAMES = {"merge_size": 2, "temporal_patch_size": 2}
_PATCHES = _FRAMES | {"size": {"shortest_edge": 65_536, "longest_edge": 1_048_576}}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DELTA = {
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_conv_kernel_dim": 4, "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip
_GLM = {
    "image_token": "<|image|>", "video_token": "<|video|>", "image_start_token": "<|begin_of_image|>",
    "image_end_token": "<|end_of_image|>", "video_start_token": "<|begin_of_video|>",
    "video_end_token": "<|end_of_video|>",
}  # fmt: skip
_GLM_SIGN = "<|begin_of_image|><|image|><|end_of_image|>"
_GLM_EYES = EYES | {
    "depth": 2, "num_heads": 2, "image_size": 336, "patch_size": 14, "out_hidden_size": 128, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip
_GLM_EXPERTS = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
    "n_shared_experts": 1, "use_qk_norm": False,
}  # fmt: skip
_WINDOWS = ["sliding_attention", "full_attention"]
_NO_VIDEO = {"image": 4, "video": 0}
_ONE_SIZE = "vLLM makes its eyes of one size only, hundreds of millions of weights"


def written(name: str, folder: Path, base: Path, *, weights: bool = False) -> Path:
    """The model's folder. `base` and `weights` as in `write`."""
    write(SEEING[name], folder / name, base, weights=weights)
    return folder / name


def _siglip(size: int, patch: int) -> dict[str, Any]:
    eyes = {"model_type": "siglip_vision_model", "vision_use_head": False, "image_size": size, "patch_size": patch}
    return EYES | eyes


def _square(size: int) -> dict[str, int]:
    return {"height": size, "width": size}


def _rope(sections: list[int], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections, **more}}


def _pixtral(stem: str, model_type: str, size: int, patch: int, **how: Any) -> Seeing:
    """A model with Pixtral's eyes. `stem`: of the model; others are Mistral 3's, but for LLaVA's."""
    is_llava = stem == "Llava"
    eyes = EYES | {
        "model_type": "pixtral", "head_dim": 32, "image_size": size, "patch_size": patch,
        "hidden_act": "silu",  # as published models have it, and SGLang knows no other
    }  # fmt: skip
    merges = {} if is_llava else {"spatial_merge_size": 2}
    own = {"vision_feature_select_strategy": "full"} if is_llava else merges
    return Seeing(
        stem, _ROWS, "[IMG]",
        {
            "text_config": Text(model_type=model_type), "vision_config": eyes, "image_token_index": Id("[IMG]"),
            "vision_feature_layer": -1, **own,
        },
        {"PixtralImageProcessor": {"size": {"longest_edge": size}, "patch_size": _square(patch)}},
        {"patch_size": patch, **merges, **_ROWS}, processor="PixtralProcessor", **how,
    )  # fmt: skip


def _qwen(stem: str, eyes: dict[str, Any], *, film: str = "", **rope: Any) -> Seeing:
    patches, is_third = {"patch_size": eyes["patch_size"]}, stem.startswith("Qwen3")
    return Seeing(
        stem, _QWEN, _QWEN_SIGN,
        {
            "text_config": Text(_rope([6, 5, 5], **rope) | _EXPERTS, norm_topk_prob=True), "vision_config": eyes,
            "tie_word_embeddings": True, **ids(_QWEN),
        },
        {
            "Qwen2VLImageProcessor": patches | _PATCHES | HALF,
            "Qwen3VLVideoProcessor" if is_third else "Qwen2VLVideoProcessor": patches | _FRAMES,
        },
        limits=_NO_VIDEO, film=film, processor="Qwen3VLProcessor" if is_third else "",
    )  # fmt: skip


def _qwen35(stem: str, **text: Any) -> Seeing:
    rope = _rope([2, 1, 1], mrope_interleaved=True, partial_rotary_factor=0.25)
    return Seeing(
        stem, _QWEN, _QWEN_SIGN,
        {
            "text_config": Text(_DELTA | rope | text), "vision_config": _QWEN35_EYES, "tie_word_embeddings": True,
            **ids(_QWEN),
        },
        {"Qwen2VLImageProcessor": {"patch_size": 16} | _PATCHES | HALF,
         "Qwen3VLVideoProcessor": {"patch_size": 16} | _FRAMES},
        limits=_NO_VIDEO, dtype="bfloat16", processor="Qwen3VLProcessor",
    )  # fmt: skip


def _glm(stem: str, parts: str = "Glm46V", **text: Any) -> Seeing:
    """`parts`: of its processor."""
    rope = _rope([8, 4, 4], partial_rotary_factor=1.0)
    return Seeing(
        stem, _GLM, _GLM_SIGN,
        {"text_config": Text(rope | text), "vision_config": _GLM_EYES, "tie_word_embeddings": True, **ids(_GLM)},
        {f"{parts}ImageProcessor": {}, f"{parts}VideoProcessor": {}},
        limits=_NO_VIDEO, processor=f"{parts}Processor",
    )  # fmt: skip


def _idefics(stem: str, eyes: str, parts: dict[str, Any]) -> Seeing:
    return Seeing(
        stem, _TILES, "<image>",
        {
            "text_config": Text(model_type="llama"), "image_token_id": Id("<image>"), "scale_factor": 2,
            "vision_config": EYES | {"model_type": eyes, "image_size": 364, "patch_size": 14},
            "tie_word_embeddings": True,
        },
        {f"{stem}ImageProcessor": {
            "size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364}, "resample": 3, **HALF,
        }} | parts,
        {"image_seq_len": 169},
    )  # fmt: skip


SEEING: dict[str, Seeing] = {
    "llava": Seeing(
        "Llava", _IMAGE, "<image>\n",
        {
            "text_config": Text(model_type="llama"), "vision_config": _CLIP, "image_token_index": Id("<image>"),
            "image_seq_length": 576,
        },
        {"CLIPImageProcessor": _CLIP_SIZE}, _OF_CLIP,
    ),
    "llava_next": Seeing(
        "LlavaNext", _IMAGE, "<image>\n",
        {
            "text_config": Text(model_type="llama"), "vision_config": _CLIP, "image_token_index": Id("<image>"),
            "image_grid_pinpoints": _CLIP_PLACES,
        },
        {"LlavaNextImageProcessor": _CLIP_SIZE | {"image_grid_pinpoints": _CLIP_PLACES}}, _OF_CLIP,
    ),
    "llava_onevision": Seeing(
        "LlavaOnevision", _IMAGE | {"video_token": "<video>"}, "<image>\n",
        {
            "text_config": Text(model_type="qwen2"), "vision_config": _siglip(384, 14),
            "image_token_index": Id("<image>"), "video_token_index": Id("<video>"), "image_grid_pinpoints": _PLACES,
        },
        {
            "LlavaOnevisionImageProcessor": {"size": _square(384), "image_grid_pinpoints": _PLACES, **HALF},
            "LlavaOnevisionVideoProcessor": {"size": _square(384)},
        },
        {"num_image_tokens": 729, "vision_feature_select_strategy": "full"}, _NO_VIDEO,
    ),
    "pixtral": _pixtral("Llava", "mistral", 1024, 16),
    "mistral3": _pixtral("Mistral3", "mistral", 1540, 14),
    "gemma3": Seeing(
        "Gemma3", _BORDERS | _LINES, "<start_of_image>",
        {
            "text_config": Text(sliding_window=512, layer_types=_WINDOWS), "vision_config": _siglip(896, 14),
            "mm_tokens_per_image": 256, "boi_token_index": Id("<start_of_image>"),
            "eoi_token_index": Id("<end_of_image>"), "image_token_index": Id("<image_soft_token>"),
        },
        {"Gemma3ImageProcessor": {"size": _square(896), **HALF}}, {"image_seq_length": 256},
    ),
    "internvl": Seeing(
        "InternVL",
        {
            "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        "<IMG_CONTEXT>\n",
        {
            "text_config": Text(model_type="qwen2"), "image_token_id": Id("<IMG_CONTEXT>"), "image_seq_length": 256,
            "vision_config": EYES | {"image_size": [448, 448], "patch_size": [14, 14], "norm_type": "layer_norm"},
            "downsample_ratio": 0.5,
        },
        {
            "GotOcr2ImageProcessor": {
                "crop_to_patches": True, "min_patches": 1, "max_patches": 6, "size": _square(448), **HALF,
            },
            "InternVLVideoProcessor": {"size": _square(448)},
        },
        {"image_seq_length": 256}, _NO_VIDEO,
    ),
    "qwen2_vl": _qwen("Qwen2VL", _QWEN2_EYES, film=_QWEN_FILM),
    "qwen2_5_vl": _qwen("Qwen2_5_VL", _QWEN25_EYES),
    "qwen3_vl": _qwen("Qwen3VL", _QWEN3_EYES, film=_QWEN_FILM, mrope_interleaved=True),
    "qwen3_vl_moe": _qwen("Qwen3VLMoe", _QWEN3_EYES, mrope_interleaved=True),
    "lfm2_vl": Seeing(
        "Lfm2Vl",
        _IMAGE | {
            "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>",
            "image_thumbnail": "<|img_thumbnail|>",
        },
        "<image>",
        {
            "text_config": Text(
                model_type="lfm2", layer_types=["conv", "full_attention"], conv_L_cache=3, conv_bias=False,
                block_multiple_of=32, conv_dim=128, block_dim=128,
            ),
            "vision_config": EYES | {
                "model_type": "siglip2_vision_model", "num_patches": 256, "patch_size": 16, "vision_use_head": False,
            },
            "image_token_id": Id("<image>"), "downsample_factor": 2,
        },
        {"Lfm2VlImageProcessor": {}},
    ),
    "cohere2_vision": Seeing(
        "Cohere2Vision",
        {
            "image_token": "<|IMG_PATCH|>", "boi_token": "<|START_OF_IMG|>", "eoi_token": "<|END_OF_IMG|>",
            "img_line_break_token": "<|IMG_LINE_BREAK|>",
        },
        "<|IMG_PATCH|>",
        {
            "text_config": Text(model_type="cohere2", sliding_window=512, layer_types=_WINDOWS),
            "vision_config": _siglip(512, 16), "image_token_id": Id("<|IMG_PATCH|>"), "downsample_factor": 2,
            "alignment_intermediate_size": 128,
        },
        {"Cohere2VisionImageProcessor": {"size": _square(512), "max_patches": 6}},
    ),
    "idefics3": _idefics("Idefics3", "idefics3_vision", {}),
    "smolvlm": _idefics("SmolVLM", "smolvlm_vision", {
        "SmolVLMVideoProcessor": {"size": {"longest_edge": 364}, "max_image_size": {"longest_edge": 364}},
    }),
    "aria": Seeing(
        "Aria", {"image_token": "<|img|>"}, "<|img|>",
        {
            "text_config": Text(
                model_type="aria_text", moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1,
                tie_word_embeddings=False,
            ),
            "vision_config": EYES | {"model_type": "idefics3_vision", "image_size": 980, "patch_size": 14},
            "image_token_index": Id("<|img|>"), "projector_patch_to_query_dict": {1225: 128, 4900: 256},
        },
        {"AriaImageProcessor": {}},
    ),
    "gemma3n": Seeing(
        "Gemma3n", _BORDERS | _SOUND_BORDERS | _LINES, "<image_soft_token>",
        {
            "text_config": Text(
                num_hidden_layers=5, sliding_window=128, layer_types=_WINDOWS[:1] * 4 + _WINDOWS[1:],
                num_kv_shared_layers=0, intermediate_size=[128] * 5, activation_sparsity_pattern=[0.0] * 5,
                vocab_size_per_layer_input=49152, hidden_size_per_layer_input=32, vocab_size=Above(256),
            ),
            "vision_config": {"vocab_offset": Above(0), "hidden_size": 64},
            "audio_config": {"vocab_offset": Above(128), "hidden_size": 64, "conf_num_hidden_layers": 1},
            **ids(_BORDERS | _SOUND_BORDERS),
        },
        {"Gemma3nAudioFeatureExtractor": {}, "SiglipImageProcessor": {"size": _square(768), **HALF}},
        limits={"image": 4, "audio": 2}, sound="<audio_soft_token>", large=_ONE_SIZE,
    ),
    "gemma4": Seeing(
        "Gemma4",
        {
            "boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>", "video_token": "<|video|>",
            "boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>",
        },
        "<|image|>",
        {
            "text_config": Text(
                num_hidden_layers=6, sliding_window=128, layer_types=_WINDOWS[:1] * 5 + _WINDOWS[1:],
                vocab_size_per_layer_input=49152, hidden_size_per_layer_input=0,
            ),
            "vision_config": EYES | {"num_key_value_heads": 2, "head_dim": 32, "default_output_length": 280},
            "audio_config": None, "boi_token_id": Id("<|image>"), "eoi_token_id": Id("<image|>"),
            "image_token_id": Id("<|image|>"), "video_token_id": Id("<|video|>"),
        },
        {"Gemma4AudioFeatureExtractor": {}, "Gemma4ImageProcessor": {}, "Gemma4VideoProcessor": {}},
        limits=_NO_VIDEO,
    ),
    "glm4v": _glm("Glm4v", "Glm4v"),
    "glm4v_moe": _glm("Glm4vMoe", **_GLM_EXPERTS),
    "glm_ocr": _glm("GlmOcr"),
    "granite4_vision": Seeing(
        "Granite4Vision", _IMAGE, "<image>\n",
        {
            "text_config": Text(model_type="granite4_vision_text", num_hidden_layers=4),
            "vision_config": _siglip(384, 16), "image_token_index": Id("<image>"), "image_grid_pinpoints": _PLACES,
            "downsample_rate": "4/8", "deepstack_layer_map": [[-1, 0]], "vision_feature_select_strategy": "full",
            "qformer_config": {
                "model_type": "blip_2_qformer", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
                "intermediate_size": 64, "encoder_hidden_size": 64,
            },
        },
        {"LlavaNextImageProcessor": {
            "size": {"shortest_edge": 384}, "crop_size": _square(384), "image_grid_pinpoints": _PLACES, **HALF,
        }},
        {"patch_size": 16, "vision_feature_select_strategy": "full", "downsample_rate": "4/8"},
    ),
    "lightonocr": _pixtral("LightOnOCR", "qwen3", 1540, 14, config="Mistral3Config"),
    "llama4": Seeing(
        "Llama4",
        {
            "image_token": "<|image|>", "start": "<|image_start|>", "end": "<|image_end|>", "patch": "<|patch|>",
            "across": "<|tile_x_separator|>", "down": "<|tile_y_separator|>",
        },
        "<|image|>",
        {
            "text_config": Text(
                num_hidden_layers=4, attention_chunk_size=256, num_local_experts=4, num_experts_per_tok=1,
                layer_types=["chunked_attention"] * 3 + ["full_attention"], no_rope_layers=[1, 1, 1, 0],
                interleave_moe_layer_step=2, intermediate_size_mlp=128,
            ),
            "vision_config": EYES | {
                "image_size": 336, "patch_size": 14, "vision_output_dim": 64, "projector_input_dim": 64,
                "projector_output_dim": 64, "intermediate_size": 256,
            },
            "boi_token_index": Id("<|image_start|>"), "eoi_token_index": Id("<|image_end|>"),
            "image_token_index": Id("<|patch|>"),
        },
        {"Llama4ImageProcessor": {"size": _square(336), "max_patches": 8, "resize_to_max_canvas": False}},
        {"patch_size": 14, "pixel_shuffle_ratio": 0.5},
    ),
    "paddleocr_vl": Seeing(
        "PaddleOCRVL", {"image_token": "<|IMAGE_PLACEHOLDER|>", "start": "<|IMAGE_START|>", "end": "<|IMAGE_END|>"},
        "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
        {
            "text_config": Text(_rope([6, 5, 5])), "image_token_id": Id("<|IMAGE_PLACEHOLDER|>"),
            "vision_config": EYES | {"image_size": 384, "patch_size": 14, "spatial_merge_size": 2},
            "vision_start_token_id": Id("<|IMAGE_START|>"), "vision_end_token_id": Id("<|IMAGE_END|>"),
        },
        {"PaddleOCRVLImageProcessor": {}},
    ),
    "exaone4_5": Seeing(
        "Exaone4_5_",
        {"begin": "<vision>", "end": "</vision>", "image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
        "<vision><|image_pad|></vision>",
        {
            "text_config": Text(model_type="exaone4", sliding_window=128, layer_types=_WINDOWS),
            "vision_config": EYES | {
                "depth": 2, "num_heads": 2, "num_key_value_heads": 2, "patch_size": 14, "out_hidden_size": 128,
                "fullatt_block_indexes": [1],
            },
            "image_token_id": Id("<|image_pad|>"), "video_token_id": Id("<|video_pad|>"), "tie_word_embeddings": True,
        },
        {"Qwen2VLImageProcessor": {"patch_size": 14} | _PATCHES, "Qwen2VLVideoProcessor": {"patch_size": 14} | _FRAMES},
        limits=_NO_VIDEO,
    ),
    "qwen3_5": _qwen35("Qwen3_5"),
    "qwen3_5_moe": _qwen35("Qwen3_5Moe", **_EXPERTS, shared_expert_intermediate_size=32),
    "minicpmv4_6": Seeing(
        "MiniCPMV4_6",
        {
            "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "image_start_token": "<image>",
            "image_end_token": "</image>", "slice_start_token": "<slice>", "slice_end_token": "</slice>",
            "image_id_start_token": "<image_id>", "image_id_end_token": "</image_id>",
        },
        "<|image_pad|>",
        {
            "text_config": Text(
                _DELTA, model_type="qwen3_5_text",
                rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
            ),
            "vision_config": EYES | {"image_size": 980, "patch_size": 14, "insert_layer_id": 0}, "insert_layer_id": 0,
            "image_token_id": Id("<|image_pad|>"), "video_token_id": Id("<|video_pad|>"),
        },
        {"MiniCPMV4_6ImageProcessor": {}, "MiniCPMV4_6VideoProcessor": {}},
        limits=_NO_VIDEO, dtype="bfloat16",
    ),
    "blip2": Seeing(
        "Blip2", _IMAGE, "",
        {
            "text_config": Text(model_type="opt", ffn_dim=128, word_embed_proj_dim=128),
            "vision_config": EYES | {"image_size": 224, "patch_size": 14},
            "qformer_config": EYES | {"encoder_hidden_size": 64}, "num_query_tokens": 32,
            "image_token_index": Id("<image>"),
        },
        {"BlipImageProcessor": {"size": _square(224)}}, {"num_query_tokens": 32}, {"image": 1},
    ),
    "qianfan_ocr": Seeing(  # as all InternVL of the older form: its sign of a picture is no token but a text
        "QianfanOCR", {"begin": "<img>", "end": "</img>", "context": "<IMG_CONTEXT>"}, "<image>\n",
        {
            "text_config": Text(model_type="qwen3"), "vision_config": EYES | {"image_size": 448, "patch_size": 14},
            "image_token_id": Id("<IMG_CONTEXT>"), "max_dynamic_patch": 6, "tie_word_embeddings": True,
        },
        config="vllm.transformers_utils.configs.qianfan_ocr:QianfanOCRConfig", processor=None,
    ),
} | DEEPSEEK | HEARING  # fmt: skip
