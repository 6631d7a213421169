"""Tiny models that see, of today's types: configuration, tokenizer and processor, of which vLLM makes up the weights.

One function for each type, in the order of `SEEING`; what it does not say the classes of transformers do. A list,
however long: what a type needs, it alone needs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.models.hearing import HEARING
from ops.models.seeing_more import MORE
from ops.models.sight import EYES, HALF, TEMPLATE, TEXT, Fields, IdOf, Parts, Seeing

_QWEN = {
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}
_IMAGE = {"image_token": "<image>"}
_CLIP = EYES | {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14, "projection_dim": 64}
# Of processors of pictures that CLIP sees.
_OF_CLIP: dict[str, Any] = _IMAGE | {
    "patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
}  # fmt: skip
_ROWS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
_QWEN_SIGN = "<|vision_start|><|image_pad|><|vision_end|>"
_QWEN_FILM = "<|vision_start|><|video_pad|><|vision_end|>"
_PATCHES = {"merge_size": 2, "temporal_patch_size": 2, "size": {"shortest_edge": 65_536, "longest_edge": 1_048_576}}


def written(name: str, folder: Path, base: Path, *, weights: bool = False) -> Path:
    """`base`: with the tokenizer that the model gets, with further tokens.

    With `weights`, random ones, it tells pictures apart; those that vLLM makes up are nearly nothing.
    """
    from transformers import AutoTokenizer

    model, path = SEEING[name], folder / name
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"additional_special_tokens": [*model.tokens.values()]})
    id_of = tokenizer.convert_tokens_to_ids
    for attribute, token in model.tokens.items():
        setattr(tokenizer, attribute, token)
        setattr(tokenizer, f"{attribute}_id", id_of(token))
    tokenizer.init_kwargs |= {**model.tokens, "extra_special_tokens": {**model.tokens}}
    own = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    parts = model.parts(tokenizer, id_of, TEXT | own | {"vocab_size": -(-len(tokenizer) // 64) * 64})
    tokenizer.chat_template = (
        TEMPLATE.replace("SIGN", model.sign).replace("SOUND", model.sound).replace("FILM", model.film)
    )
    parts.config.architectures, parts.config.dtype = [model.name], model.dtype
    path.mkdir()
    parts.config.save_pretrained(path)
    if parts.processor is not None:
        parts.processor.chat_template = tokenizer.chat_template
        parts.processor.save_pretrained(path)
    tokenizer.save_pretrained(path)
    if weights:
        _save_weights(parts.config, path)
    return path


def _save_weights(config: Any, path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, config.architectures[0])(config).float()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(path)
    if config.vision_config.model_type == "siglip_vision_model":
        _rename(path / "model.safetensors")


def _rename(path: Path) -> None:
    """Gives the weights the names that published ones have: transformers 5 leaves out a level."""
    from safetensors.torch import load_file, save_file

    weights = {name.replace("vision_tower.", "vision_tower.vision_model."): t for name, t in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


def _llava(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    config = t.LlavaConfig(
        text_config=text | {"model_type": "llama"},
        vision_config=_CLIP,
        image_token_index=id_of("<image>"),
        image_seq_length=576,
    )
    images = t.CLIPImageProcessor(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    return Parts(config, t.LlavaProcessor(images, tokenizer, **_OF_CLIP))


def _llava_next(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    points = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    config = t.LlavaNextConfig(
        text_config=text | {"model_type": "llama"},
        vision_config=_CLIP,
        image_token_index=id_of("<image>"),
        image_grid_pinpoints=points,
    )
    images = t.LlavaNextImageProcessor(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}, image_grid_pinpoints=points
    )
    return Parts(config, t.LlavaNextProcessor(images, tokenizer, **_OF_CLIP))


def _gemma3(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    config = t.Gemma3Config(
        text_config=text | {"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=EYES
        | {"image_size": 896, "patch_size": 14, "model_type": "siglip_vision_model", "vision_use_head": False},
        mm_tokens_per_image=256,
        boi_token_index=id_of("<start_of_image>"),
        eoi_token_index=id_of("<end_of_image>"),
        image_token_index=id_of("<image_soft_token>"),
    )
    images = t.Gemma3ImageProcessor(size={"height": 896, "width": 896}, **HALF)
    return Parts(config, t.Gemma3Processor(images, tokenizer, image_seq_length=256))


def _mistral3(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    config = t.Mistral3Config(
        text_config=text | {"model_type": "mistral"},
        vision_config=EYES | {"model_type": "pixtral", "head_dim": 32, "image_size": 1540, "patch_size": 14},
        image_token_index=id_of("[IMG]"),
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    images = t.PixtralImageProcessor(size={"longest_edge": 1540}, patch_size={"height": 14, "width": 14})
    return Parts(
        config,
        t.PixtralProcessor(
            images,
            tokenizer,
            patch_size=14,
            spatial_merge_size=2,
            **_ROWS,
        ),
    )


def _pixtral(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    """Parts of a `LlavaForConditionalGeneration` with Pixtral's vision tower."""
    import transformers as t

    config = t.LlavaConfig(
        text_config=text | {"model_type": "mistral"},
        vision_config=EYES | {"model_type": "pixtral", "head_dim": 32, "image_size": 1024, "patch_size": 16},
        image_token_index=id_of("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    images = t.PixtralImageProcessor(size={"longest_edge": 1024}, patch_size={"height": 16, "width": 16})
    return Parts(
        config,
        t.PixtralProcessor(
            images,
            tokenizer,
            patch_size=16,
            **_ROWS,
        ),
    )


def _internvl(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    config = t.InternVLConfig(
        text_config=text | {"model_type": "qwen2"},
        vision_config=EYES | {"image_size": [448, 448], "patch_size": [14, 14], "norm_type": "layer_norm"},
        image_token_id=id_of("<IMG_CONTEXT>"),
        image_seq_length=256,
        downsample_ratio=0.5,
    )
    size = {"height": 448, "width": 448}
    images = t.GotOcr2ImageProcessor(crop_to_patches=True, min_patches=1, max_patches=6, size=size, **HALF)
    return Parts(
        config, t.InternVLProcessor(images, tokenizer, t.InternVLVideoProcessor(size=size), image_seq_length=256)
    )


def _qwen(kind: str, vision: Fields, rope: Fields) -> Callable[[Any, IdOf, Fields], Parts]:
    def parts(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
        import transformers as t
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        patch = vision["patch_size"]
        ids = {f"{name}_id": id_of(token) for name, token in _QWEN.items()}
        text_config = text | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4} | rope} | _EXPERTS
        config = CONFIG_MAPPING[kind](text_config=text_config, vision_config=vision, tie_word_embeddings=True, **ids)
        images = t.Qwen2VLImageProcessor(patch_size=patch, **_PATCHES, **HALF)
        if kind.startswith("qwen3"):
            videos = t.Qwen3VLVideoProcessor(patch_size=patch, merge_size=2, temporal_patch_size=2)
            return Parts(config, t.Qwen3VLProcessor(images, tokenizer, videos))
        videos = t.Qwen2VLVideoProcessor(patch_size=patch, merge_size=2, temporal_patch_size=2)
        cls = t.Qwen2VLProcessor if kind == "qwen2_vl" else t.Qwen2_5_VLProcessor
        return Parts(config, cls(images, tokenizer, videos))

    return parts


_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
_QWEN3_EYES = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "out_hidden_size": 128,
    "num_position_embeddings": 256,
    "deepstack_visual_indexes": [0],
}
_QWEN25_EYES = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "in_chans": 3,
    "out_hidden_size": 128,
    "window_size": 112,
    "fullatt_block_indexes": [1],
}
_QWEN2_EYES = {
    "depth": 2,
    "embed_dim": 64,
    "hidden_size": 128,
    "num_heads": 2,
    "mlp_ratio": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "in_chans": 3,
}
_MROPE = {"mrope_section": [6, 5, 5]}


def _lfm2(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    config = t.Lfm2VlConfig(
        text_config=text
        | {
            "model_type": "lfm2",
            "layer_types": ["conv", "full_attention"],
            "conv_L_cache": 3,
            "conv_bias": False,
            "block_multiple_of": 32,
            "conv_dim": 128,
            "block_dim": 128,
        },
        vision_config=EYES
        | {"model_type": "siglip2_vision_model", "num_patches": 256, "patch_size": 16, "vision_use_head": False},
        image_token_id=id_of("<image>"),
        downsample_factor=2,
    )
    return Parts(config, t.Lfm2VlProcessor(t.Lfm2VlImageProcessor(), tokenizer))


def _onevision(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    points = [[384, 384], [384, 768], [768, 384], [768, 768], [384, 1152], [1152, 384]]
    config = t.LlavaOnevisionConfig(
        text_config=text | {"model_type": "qwen2"},
        vision_config=EYES
        | {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14, "vision_use_head": False},
        image_token_index=id_of("<image>"),
        video_token_index=id_of("<video>"),
        image_grid_pinpoints=points,
    )
    size = {"height": 384, "width": 384}
    images = t.LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=points, **HALF)
    return Parts(
        config,
        t.LlavaOnevisionProcessor(
            images,
            tokenizer,
            t.LlavaOnevisionVideoProcessor(size=size),
            num_image_tokens=729,
            vision_feature_select_strategy="full",
        ),
    )


def _cohere(tokenizer: Any, id_of: IdOf, text: Fields) -> Parts:
    import transformers as t

    config = t.Cohere2VisionConfig(
        text_config=text
        | {"model_type": "cohere2", "sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=EYES
        | {"model_type": "siglip_vision_model", "image_size": 512, "patch_size": 16, "vision_use_head": False},
        image_token_id=id_of("<|IMG_PATCH|>"),
        downsample_factor=2,
        alignment_intermediate_size=128,
    )
    images = t.Cohere2VisionImageProcessor(size={"height": 512, "width": 512}, max_patches=6)
    return Parts(config, t.Cohere2VisionProcessor(images, tokenizer))


_NO_VIDEO = {"image": 4, "video": 0}
SEEING = (
    {
        "llava": Seeing("LlavaForConditionalGeneration", _IMAGE, "<image>\n", _llava),
        "llava_next": Seeing("LlavaNextForConditionalGeneration", _IMAGE, "<image>\n", _llava_next),
        "llava_onevision": Seeing(
            "LlavaOnevisionForConditionalGeneration",
            {**_IMAGE, "video_token": "<video>"},
            "<image>\n",
            _onevision,
            _NO_VIDEO,
        ),
        "pixtral": Seeing("LlavaForConditionalGeneration", _ROWS, "[IMG]", _pixtral),
        "mistral3": Seeing("Mistral3ForConditionalGeneration", _ROWS, "[IMG]", _mistral3),
        "gemma3": Seeing(
            "Gemma3ForConditionalGeneration",
            {
                "boi_token": "<start_of_image>",
                "eoi_token": "<end_of_image>",
                "image_token": "<image_soft_token>",
                "one": "\n",
                "two": "\n\n",
                "three": "\n\n\n",
                "four": "\n\n\n\n",
            },
            "<start_of_image>",
            _gemma3,
        ),
        "internvl": Seeing(
            "InternVLForConditionalGeneration",
            {
                "start_image_token": "<img>",
                "end_image_token": "</img>",
                "context_image_token": "<IMG_CONTEXT>",
                "video_token": "<video>",
            },
            "<IMG_CONTEXT>\n",
            _internvl,
            _NO_VIDEO,
        ),
        "qwen2_vl": Seeing(
            "Qwen2VLForConditionalGeneration",
            _QWEN,
            _QWEN_SIGN,
            _qwen("qwen2_vl", _QWEN2_EYES, _MROPE),
            _NO_VIDEO,
            film=_QWEN_FILM,
        ),
        "qwen2_5_vl": Seeing(
            "Qwen2_5_VLForConditionalGeneration",
            _QWEN,
            _QWEN_SIGN,
            _qwen("qwen2_5_vl", _QWEN25_EYES, _MROPE),
            _NO_VIDEO,
        ),
        "qwen3_vl": Seeing(
            "Qwen3VLForConditionalGeneration",
            _QWEN,
            _QWEN_SIGN,
            _qwen("qwen3_vl", _QWEN3_EYES, _MROPE | {"mrope_interleaved": True}),
            _NO_VIDEO,
            film=_QWEN_FILM,
        ),
        "qwen3_vl_moe": Seeing(
            "Qwen3VLMoeForConditionalGeneration",
            _QWEN,
            _QWEN_SIGN,
            _qwen("qwen3_vl_moe", _QWEN3_EYES, _MROPE | {"mrope_interleaved": True}),
            _NO_VIDEO,
        ),
        "lfm2_vl": Seeing(
            "Lfm2VlForConditionalGeneration",
            {
                **_IMAGE,
                "image_start_token": "<|image_start|>",
                "image_end_token": "<|image_end|>",
                "image_thumbnail": "<|img_thumbnail|>",
            },
            "<image>",
            _lfm2,
        ),
        "cohere2_vision": Seeing(
            "Cohere2VisionForConditionalGeneration",
            {
                "image_token": "<|IMG_PATCH|>",
                "boi_token": "<|START_OF_IMG|>",
                "eoi_token": "<|END_OF_IMG|>",
                "img_line_break_token": "<|IMG_LINE_BREAK|>",
            },
            "<|IMG_PATCH|>",
            _cohere,
        ),
    }
    | MORE
    | HEARING
)
