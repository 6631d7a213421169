"""DeepSeek's tiny models that see, whose classes are vLLM's own."""

from typing import Any

from ops.models.sight import Fields, Seeing, Text

_TOKENS = {
    "image_token": "<image>", "ref": "<|ref|>", "end_ref": "<|/ref|>", "det": "<|det|>", "end_det": "<|/det|>",
    "ground": "<|grounding|>", "user": "<|User|>", "assistant": "<|Assistant|>",
}  # fmt: skip
_PLACES = [[384, 384], [384, 768], [768, 384], [768, 768], [384, 1152], [1152, 384]]
_VLLM = "vllm.transformers_utils"
_TEXT = Text(
    kv_lora_rank=None, q_lora_rank=None, qk_nope_head_dim=0, qk_rope_head_dim=0, v_head_dim=0, use_mla=False,
    first_k_dense_replace=2, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1,
)  # fmt: skip
_LAYERS = {"width": 64, "layers": 2, "heads": 2}
_CLIP = _LAYERS | {"image_size": 224, "patch_size": 14}
_SAM = _LAYERS | {"global_attn_indexes": [1], "downsample_channels": [64, 64]}


class _DeepSeek(Seeing):
    def made(self, tokenizer: Any, text: Fields) -> tuple[Any, Any]:
        config, processor = super().made(tokenizer, text)
        config.language_config = config.text_config.to_dict()  # so it is named in files
        del config.text_config
        return config, processor


def _row(stem: str, processor: str, eyes: Fields, projector: Fields, options: Fields) -> Seeing:
    fields = {
        "architectures": [f"{stem}ForCausalLM"], "vision_config": eyes, "language_config": _TEXT, "tile_tag": "2D",
        "projector_config": {"n_embed": 128, **projector}, "candidate_resolutions": _PLACES,
    }  # fmt: skip
    return _DeepSeek(
        stem, _TOKENS, "<image>", fields, options=options, ending="ForCausalLM",
        config=f"{_VLLM}.configs.deepseek_vl2:DeepseekVLV2Config", processor=f"{_VLLM}.processors.{processor}",
        large="vLLM makes its eyes of one size only, hundreds of millions of weights",
    )  # fmt: skip


DEEPSEEK = {
    "deepseek_vl2": _row(
        "DeepseekVLV2", "deepseek_vl2:DeepseekVLV2Processor", {"image_size": 384, "patch_size": 14, **_LAYERS},
        {"input_dim": 1152}, {"candidate_resolutions": _PLACES, "patch_size": 14, "downsample_ratio": 2},
    ),
    "deepseek_ocr": _row(
        "DeepseekOCR", "deepseek_ocr:DeepseekOCRProcessor",
        {"model_type": "vision", "width": {"clip-l-14-224": _CLIP, "sam_vit_b": _SAM}, "image_size": 1024},
        {"input_dim": 2048, "projector_type": "linear"}, {},
    ),
}  # fmt: skip
