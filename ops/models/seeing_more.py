"""Further tiny models that see, as in `seeing`."""

from collections.abc import Callable
from typing import Any

from ops.models.sight import EYES, HALF, Fields, IdOf, Parts, Seeing

_SIGLIP = EYES | {"model_type": "siglip_vision_model", "vision_use_head": False}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DELTA = {
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
_ROWS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
_ONE_SIZE = "vLLM makes its eyes of one size only, hundreds of millions of weights"
_HYBRID = {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
_TILES = {
    "fake_image_token": "<fake_token_around_image>",
    "image_token": "<image>",
    "global_image_token": "<global-img>",
    "end": "<end_of_utterance>",
}


def _idefics(kind: str) -> Callable[[Any, IdOf, Fields], Parts]:
    def parts(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
        import transformers as t

        smol = kind == "smolvlm"
        config = (t.SmolVLMConfig if smol else t.Idefics3Config)(
            text_config=text | {"model_type": "llama"},
            vision_config=EYES | {"model_type": f"{kind}_vision", "image_size": 364, "patch_size": 14},
            image_token_id=id_of("<image>"),
            scale_factor=2,
            tie_word_embeddings=True,
        )
        sizes = {"size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364}, "resample": 3}
        images = (t.SmolVLMImageProcessor if smol else t.Idefics3ImageProcessor)(**sizes, **HALF)
        if smol:
            videos = t.SmolVLMVideoProcessor(size={"longest_edge": 364}, max_image_size={"longest_edge": 364})
            return Parts(config, t.SmolVLMProcessor(images, tokenizer, videos, image_seq_len=169))
        return Parts(config, t.Idefics3Processor(images, tokenizer, image_seq_len=169))

    return parts


def _aria(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    experts = {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1, "tie_word_embeddings": False}
    config = t.AriaConfig(
        text_config=text | experts | {"model_type": "aria_text"},
        vision_config=EYES | {"model_type": "idefics3_vision", "image_size": 980, "patch_size": 14},
        image_token_index=id_of("<|img|>"),
        projector_patch_to_query_dict={1225: 128, 4900: 256},
    )
    return Parts(config, t.AriaProcessor(t.AriaImageProcessor(), tokenizer))


def _gemma3n(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    own = {
        "num_hidden_layers": 5, "sliding_window": 128, "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
        "num_kv_shared_layers": 0, "intermediate_size": [128] * 5, "activation_sparsity_pattern": [0.0] * 5,
        "vocab_size_per_layer_input": 49152, "hidden_size_per_layer_input": 32,
    }  # fmt: skip
    tokens = {
        "boi_token_id": "<start_of_image>", "eoi_token_id": "<end_of_image>", "image_token_id": "<image_soft_token>",
        "boa_token_id": "<start_of_audio>", "eoa_token_id": "<end_of_audio>", "audio_token_id": "<audio_soft_token>",
    }  # fmt: skip
    offset = text["vocab_size"]
    config = t.Gemma3nConfig(
        text_config=text | own | {"vocab_size": offset + 256},
        vision_config={"vocab_offset": offset, "hidden_size": 64},
        audio_config={"vocab_offset": offset + 128, "hidden_size": 64, "conf_num_hidden_layers": 1},
        **{name: id_of(token) for name, token in tokens.items()},
    )
    images = t.SiglipImageProcessor(size={"height": 768, "width": 768}, **HALF)
    return Parts(config, t.Gemma3nProcessor(t.Gemma3nAudioFeatureExtractor(), images, tokenizer))


def _gemma4(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    own = {
        "num_hidden_layers": 6, "sliding_window": 128, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "vocab_size_per_layer_input": 49152, "hidden_size_per_layer_input": 0,
    }  # fmt: skip
    config = t.Gemma4Config(
        text_config=text | own,
        vision_config=EYES | {"num_key_value_heads": 2, "head_dim": 32, "default_output_length": 280},
        audio_config=None,
        boi_token_id=id_of("<|image>"),
        eoi_token_id=id_of("<image|>"),
        image_token_id=id_of("<|image|>"),
        video_token_id=id_of("<|video|>"),
    )
    processor = t.Gemma4Processor(
        t.Gemma4AudioFeatureExtractor(), t.Gemma4ImageProcessor(), tokenizer, t.Gemma4VideoProcessor()
    )
    return Parts(config, processor)


def _glm(kind: str) -> Callable[[Any, IdOf, Fields], Parts]:
    def parts(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
        import transformers as t
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        vision = EYES | {
            "depth": 2, "num_heads": 2, "image_size": 336, "patch_size": 14, "out_hidden_size": 128,
            "spatial_merge_size": 2, "temporal_patch_size": 2,
        }  # fmt: skip
        experts = {
            "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
            "n_shared_experts": 1, "use_qk_norm": False,
        }  # fmt: skip
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 4, 4], "partial_rotary_factor": 1.0}
        ids = {
            f"{name}_token_id": id_of(token)
            for name, token in {
                "image": "<|image|>", "video": "<|video|>", "image_start": "<|begin_of_image|>",
                "image_end": "<|end_of_image|>", "video_start": "<|begin_of_video|>", "video_end": "<|end_of_video|>",
            }.items()
        }  # fmt: skip
        own = text | {"rope_parameters": rope} | (experts if kind == "glm4v_moe" else {})
        config = CONFIG_MAPPING[kind](text_config=own, vision_config=vision, tie_word_embeddings=True, **ids)
        later = kind != "glm4v"
        images = (t.Glm46VImageProcessor if later else t.Glm4vImageProcessor)()
        videos = (t.Glm46VVideoProcessor if later else t.Glm4vVideoProcessor)()
        return Parts(config, (t.Glm46VProcessor if later else t.Glm4vProcessor)(images, tokenizer, videos))

    return parts


def _granite4(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    points = [[384, 384], [384, 768], [768, 384], [768, 768], [384, 1152], [1152, 384]]
    config = t.Granite4VisionConfig(
        text_config=text | {"model_type": "granite4_vision_text", "num_hidden_layers": 4},
        vision_config=_SIGLIP | {"image_size": 384, "patch_size": 16},
        image_token_index=id_of("<image>"),
        image_grid_pinpoints=points,
        downsample_rate="4/8",
        deepstack_layer_map=[[-1, 0]],
        vision_feature_select_strategy="full",
        qformer_config={
            "model_type": "blip_2_qformer", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 64, "encoder_hidden_size": 64,
        },
    )  # fmt: skip
    size = {"height": 384, "width": 384}
    images = t.LlavaNextImageProcessor(size={"shortest_edge": 384}, crop_size=size, image_grid_pinpoints=points, **HALF)
    processor = t.Granite4VisionProcessor(
        images, tokenizer, patch_size=16, vision_feature_select_strategy="full", downsample_rate="4/8"
    )
    return Parts(config, processor)


def _lighton(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    config = t.Mistral3Config(
        text_config=text | {"model_type": "qwen3"},
        vision_config=EYES | {"model_type": "pixtral", "head_dim": 32, "image_size": 1540, "patch_size": 14},
        image_token_index=id_of("[IMG]"),
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    images = t.PixtralImageProcessor(size={"longest_edge": 1540}, patch_size={"height": 14, "width": 14})
    return Parts(config, t.PixtralProcessor(images, tokenizer, patch_size=14, spatial_merge_size=2, **_ROWS))


def _llama4(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    own = {
        "num_hidden_layers": 4, "attention_chunk_size": 256, "num_local_experts": 4, "num_experts_per_tok": 1,
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"], "no_rope_layers": [1, 1, 1, 0],
        "interleave_moe_layer_step": 2, "intermediate_size_mlp": 128,
    }  # fmt: skip
    eyes = {
        "image_size": 336, "patch_size": 14, "vision_output_dim": 64, "projector_input_dim": 64,
        "projector_output_dim": 64, "intermediate_size": 256,
    }  # fmt: skip
    config = t.Llama4Config(
        text_config=text | own,
        vision_config=EYES | eyes,
        boi_token_index=id_of("<|image_start|>"),
        eoi_token_index=id_of("<|image_end|>"),
        image_token_index=id_of("<|patch|>"),
    )
    images = t.Llama4ImageProcessor(size={"height": 336, "width": 336}, max_patches=8, resize_to_max_canvas=False)
    return Parts(config, t.Llama4Processor(images, tokenizer, patch_size=14, pixel_shuffle_ratio=0.5))


def _paddle(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]}
    config = t.PaddleOCRVLConfig(
        text_config=text | {"rope_parameters": rope},
        vision_config=EYES | {"image_size": 384, "patch_size": 14, "spatial_merge_size": 2},
        image_token_id=id_of("<|IMAGE_PLACEHOLDER|>"),
        vision_start_token_id=id_of("<|IMAGE_START|>"),
        vision_end_token_id=id_of("<|IMAGE_END|>"),
    )
    return Parts(config, t.PaddleOCRVLProcessor(t.PaddleOCRVLImageProcessor(), tokenizer))


def _exaone(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    eyes = {
        "depth": 2, "num_heads": 2, "num_key_value_heads": 2, "patch_size": 14, "out_hidden_size": 128,
        "fullatt_block_indexes": [1],
    }  # fmt: skip
    own = {"model_type": "exaone4", "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]}
    config = t.Exaone4_5_Config(
        text_config=text | own,
        vision_config=EYES | eyes,
        image_token_id=id_of("<|image_pad|>"),
        video_token_id=id_of("<|video_pad|>"),
        tie_word_embeddings=True,
    )
    size = {"shortest_edge": 65_536, "longest_edge": 1_048_576}
    images = t.Qwen2VLImageProcessor(patch_size=14, merge_size=2, temporal_patch_size=2, size=size)
    videos = t.Qwen2VLVideoProcessor(patch_size=14, merge_size=2, temporal_patch_size=2)
    return Parts(config, t.Exaone4_5_Processor(images, tokenizer, videos))


def _qwen35(kind: str) -> Callable[[Any, IdOf, Fields], Parts]:
    def parts(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
        import transformers as t
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        rope = {
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True,
            "partial_rotary_factor": 0.25,
        }  # fmt: skip
        eyes = {
            "depth": 2, "num_heads": 2, "patch_size": 16, "out_hidden_size": 128, "num_position_embeddings": 256,
            "deepstack_visual_indexes": [],
        }  # fmt: skip
        own = text | _DELTA | _HYBRID | (_EXPERTS if kind.endswith("moe") else {}) | {"rope_parameters": rope}
        if kind.endswith("moe"):
            own |= {"shared_expert_intermediate_size": 32}
        config = CONFIG_MAPPING[kind](
            text_config=own,
            vision_config=EYES | eyes,
            image_token_id=id_of("<|image_pad|>"),
            video_token_id=id_of("<|video_pad|>"),
            vision_start_token_id=id_of("<|vision_start|>"),
            vision_end_token_id=id_of("<|vision_end|>"),
            tie_word_embeddings=True,
        )
        size = {"shortest_edge": 65_536, "longest_edge": 1_048_576}
        images = t.Qwen2VLImageProcessor(patch_size=16, merge_size=2, temporal_patch_size=2, size=size, **HALF)
        videos = t.Qwen3VLVideoProcessor(patch_size=16, merge_size=2, temporal_patch_size=2)
        return Parts(config, t.Qwen3VLProcessor(images, tokenizer, videos))

    return parts


def _minicpm(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    config = t.MiniCPMV4_6Config(
        text_config=text | _DELTA | _HYBRID | {"model_type": "qwen3_5_text", "rope_parameters": rope},
        vision_config=EYES | {"image_size": 980, "patch_size": 14, "insert_layer_id": 0},
        insert_layer_id=0,
        image_token_id=id_of("<|image_pad|>"),
        video_token_id=id_of("<|video_pad|>"),
    )
    images, videos = t.MiniCPMV4_6ImageProcessor(), t.MiniCPMV4_6VideoProcessor()
    return Parts(config, t.MiniCPMV4_6Processor(images, videos, tokenizer))


def _blip2(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    config = t.Blip2Config(
        text_config=text | {"model_type": "opt", "ffn_dim": 128, "word_embed_proj_dim": 128},
        vision_config=EYES | {"image_size": 224, "patch_size": 14},
        qformer_config=EYES | {"encoder_hidden_size": 64},
        num_query_tokens=32,
        image_token_index=id_of("<image>"),
    )
    images = t.BlipImageProcessor(size={"height": 224, "width": 224})
    return Parts(config, t.Blip2Processor(images, tokenizer, num_query_tokens=32))


def _qianfan(_: Any, id_of: IdOf, text: Fields) -> Parts:
    """Parts like those of all InternVL of the older form.

    Its processor is vLLM's own, and its sign of a picture is no token but a text.
    """
    from vllm.transformers_utils.configs.qianfan_ocr import QianfanOCRConfig

    config = QianfanOCRConfig(
        text_config=text | {"model_type": "qwen3"},
        vision_config=EYES | {"image_size": 448, "patch_size": 14},
        image_token_id=id_of("<IMG_CONTEXT>"),
        max_dynamic_patch=6,
        tie_word_embeddings=True,
    )
    return Parts(config, None)


def _deepseek(kind: str) -> Callable[[Any, IdOf, Fields], Parts]:
    def parts(tokenizer: Any, _: IdOf, text: Fields) -> Parts:
        from vllm.transformers_utils.configs.deepseek_vl2 import DeepseekVLV2Config
        from vllm.transformers_utils.processors.deepseek_ocr import DeepseekOCRProcessor
        from vllm.transformers_utils.processors.deepseek_vl2 import DeepseekVLV2Processor

        places = [[384, 384], [384, 768], [768, 384], [768, 768], [384, 1152], [1152, 384]]
        latent = {
            "kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0,
            "use_mla": False, "first_k_dense_replace": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "n_shared_experts": 1,
        }  # fmt: skip
        ocr = kind == "deepseek_ocr"
        vision = {"image_size": 384, "patch_size": 14, "width": 64, "layers": 2, "heads": 2}
        if ocr:
            clip = {"width": 64, "layers": 2, "heads": 2, "image_size": 224, "patch_size": 14}
            sam = {"width": 64, "layers": 2, "heads": 2, "global_attn_indexes": [1], "downsample_channels": [64, 64]}
            vision = {"model_type": "vision", "width": {"clip-l-14-224": clip, "sam_vit_b": sam}, "image_size": 1024}
        config = DeepseekVLV2Config(
            architectures=["DeepseekOCRForCausalLM" if ocr else "DeepseekVLV2ForCausalLM"],
            vision_config=vision,
            projector_config={"input_dim": 2048 if ocr else 1152, "n_embed": 128}
            | ({"projector_type": "linear"} if ocr else {}),
            language_config=text | latent,
            candidate_resolutions=places,
            tile_tag="2D",
        )
        config.language_config = config.text_config.to_dict()  # so it is named in files
        del config.text_config
        if ocr:
            return Parts(config, DeepseekOCRProcessor(tokenizer))
        return Parts(
            config, DeepseekVLV2Processor(tokenizer, candidate_resolutions=places, patch_size=14, downsample_ratio=2)
        )

    return parts


_QWEN = {
    "vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>", "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}  # fmt: skip
_QWEN_SIGN = "<|vision_start|><|image_pad|><|vision_end|>"
_GLM = {
    "image_token": "<|image|>", "video_token": "<|video|>", "image_start_token": "<|begin_of_image|>",
    "image_end_token": "<|end_of_image|>", "video_start_token": "<|begin_of_video|>",
    "video_end_token": "<|end_of_video|>",
}  # fmt: skip
_GLM_SIGN = "<|begin_of_image|><|image|><|end_of_image|>"
_ONE_VIDEO = {"image": 4, "video": 0}
_LINES = {"one": "\n", "two": "\n\n", "three": "\n\n\n", "four": "\n\n\n\n"}
_DEEPSEEK = {
    "image_token": "<image>", "ref": "<|ref|>", "end_ref": "<|/ref|>", "det": "<|det|>", "end_det": "<|/det|>",
    "ground": "<|grounding|>", "user": "<|User|>", "assistant": "<|Assistant|>",
}  # fmt: skip
MORE = {
    "idefics3": Seeing("Idefics3ForConditionalGeneration", _TILES, "<image>", _idefics("idefics3")),
    "smolvlm": Seeing("SmolVLMForConditionalGeneration", _TILES, "<image>", _idefics("smolvlm")),
    "aria": Seeing("AriaForConditionalGeneration", {"image_token": "<|img|>"}, "<|img|>", _aria),
    "gemma3n": Seeing(
        "Gemma3nForConditionalGeneration",
        {
            "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>",
            "boa_token": "<start_of_audio>", "eoa_token": "<end_of_audio>", "audio_token": "<audio_soft_token>",
            **_LINES,
        },
        "<image_soft_token>",
        _gemma3n,
        {"image": 4, "audio": 2},
        sound="<audio_soft_token>",
        large=_ONE_SIZE,
    ),
    "gemma4": Seeing(
        "Gemma4ForConditionalGeneration",
        {
            "boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>", "video_token": "<|video|>",
            "boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>",
        },
        "<|image|>",
        _gemma4,
        _ONE_VIDEO,
    ),
    "glm4v": Seeing("Glm4vForConditionalGeneration", _GLM, _GLM_SIGN, _glm("glm4v"), _ONE_VIDEO),
    "glm4v_moe": Seeing("Glm4vMoeForConditionalGeneration", _GLM, _GLM_SIGN, _glm("glm4v_moe"), _ONE_VIDEO),
    "glm_ocr": Seeing("GlmOcrForConditionalGeneration", _GLM, _GLM_SIGN, _glm("glm_ocr"), _ONE_VIDEO),
    "granite4_vision": Seeing(
        "Granite4VisionForConditionalGeneration", {"image_token": "<image>"}, "<image>\n", _granite4
    ),
    "lightonocr": Seeing(
        "LightOnOCRForConditionalGeneration",
        _ROWS,
        "[IMG]",
        _lighton,
    ),
    "llama4": Seeing(
        "Llama4ForConditionalGeneration",
        {
            "image_token": "<|image|>", "start": "<|image_start|>", "end": "<|image_end|>", "patch": "<|patch|>",
            "across": "<|tile_x_separator|>", "down": "<|tile_y_separator|>",
        },
        "<|image|>",
        _llama4,
    ),
    "paddleocr_vl": Seeing(
        "PaddleOCRVLForConditionalGeneration",
        {"image_token": "<|IMAGE_PLACEHOLDER|>", "start": "<|IMAGE_START|>", "end": "<|IMAGE_END|>"},
        "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
        _paddle,
    ),
    "exaone4_5": Seeing(
        "Exaone4_5_ForConditionalGeneration",
        {"begin": "<vision>", "end": "</vision>", "image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
        "<vision><|image_pad|></vision>",
        _exaone,
        _ONE_VIDEO,
    ),
    "qwen3_5": Seeing(
        "Qwen3_5ForConditionalGeneration", _QWEN, _QWEN_SIGN, _qwen35("qwen3_5"), _ONE_VIDEO, "bfloat16"
    ),
    "qwen3_5_moe": Seeing(
        "Qwen3_5MoeForConditionalGeneration", _QWEN, _QWEN_SIGN, _qwen35("qwen3_5_moe"), _ONE_VIDEO, "bfloat16"
    ),
    "minicpmv4_6": Seeing(
        "MiniCPMV4_6ForConditionalGeneration",
        {
            "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "image_start_token": "<image>",
            "image_end_token": "</image>", "slice_start_token": "<slice>", "slice_end_token": "</slice>",
            "image_id_start_token": "<image_id>", "image_id_end_token": "</image_id>",
        },
        "<|image_pad|>",
        _minicpm,
        _ONE_VIDEO,
        "bfloat16",
    ),
    "blip2": Seeing("Blip2ForConditionalGeneration", {"image_token": "<image>"}, "", _blip2, {"image": 1}),
    "qianfan_ocr": Seeing(
        "QianfanOCRForConditionalGeneration",
        {"begin": "<img>", "end": "</img>", "context": "<IMG_CONTEXT>"},
        "<image>\n",
        _qianfan,
    ),
    "deepseek_vl2": Seeing("DeepseekVLV2ForCausalLM", _DEEPSEEK, "<image>", _deepseek("deepseek_vl2"), large=_ONE_SIZE),
    "deepseek_ocr": Seeing("DeepseekOCRForCausalLM", _DEEPSEEK, "<image>", _deepseek("deepseek_ocr"), large=_ONE_SIZE),
}  # fmt: skip
