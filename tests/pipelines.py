"""Makes tiny pipelines of diffusers with random weights: `python -m tests.pipelines sd|sd3|flux|wan FOLDER`."""

import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

WIDTH = 32  # of texts


def bytes_tokenizer() -> Any:
    """CLIP's, in which each byte is a token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={name: i for i, name in enumerate(names)}, merges=[], model_max_length=77)


def letters_tokenizer() -> Any:
    """T5's, in which each letter is a token."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), *((chr(i), -1.0) for i in range(33, 127))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special)


def clip_text(tokenizer: Any, kind: Any = CLIPTextModel) -> Any:
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    shape = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "projection_dim": WIDTH}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2}
    return kind(CLIPTextConfig(vocab_size=len(tokenizer), **shape, **layers, **ids)).eval()


def t5_text(tokenizer: Any, width: int, kind: Any = T5EncoderModel, config: Any = T5Config) -> Any:
    shape = {"d_model": width, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    return kind(config(vocab_size=len(tokenizer), decoder_start_token_id=0, **shape)).eval()


def vae(channels: int, **more: Any) -> Any:
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    shape = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4, "sample_size": 64}
    return AutoencoderKL(in_channels=3, out_channels=3, latent_channels=channels, **blocks, **shape, **more)


def sd() -> Any:
    from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    tokenizer = bytes_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=32, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
        norm_num_groups=8, cross_attention_dim=WIDTH, attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    return StableDiffusionPipeline(
        vae=vae(4), text_encoder=clip_text(tokenizer), tokenizer=tokenizer, unet=unet,
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def sd3() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    clip, t5 = bytes_tokenizer(), letters_tokenizer()
    transformer = SD3Transformer2DModel(
        sample_size=32, patch_size=2, in_channels=16, out_channels=16, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=2 * WIDTH, caption_projection_dim=32,
        pooled_projection_dim=2 * WIDTH,
    )  # fmt: skip
    texts = [clip_text(clip, CLIPTextModelWithProjection) for _ in range(2)]
    return StableDiffusion3Pipeline(
        vae=vae(16, shift_factor=0.06, use_quant_conv=False, use_post_quant_conv=False), transformer=transformer,
        text_encoder=texts[0], text_encoder_2=texts[1], text_encoder_3=t5_text(t5, 2 * WIDTH),
        tokenizer=clip, tokenizer_2=clip, tokenizer_3=t5, scheduler=FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip


def flux() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    clip, t5 = bytes_tokenizer(), letters_tokenizer()
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=WIDTH, pooled_projection_dim=WIDTH, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    return FluxPipeline(
        vae=vae(4, shift_factor=0.1), transformer=transformer, text_encoder=clip_text(clip), tokenizer=clip,
        text_encoder_2=t5_text(t5, WIDTH), tokenizer_2=t5, scheduler=FlowMatchEulerDiscreteScheduler(),
    )  # fmt: skip


def wan() -> Any:
    from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel

    tokenizer = letters_tokenizer()
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=16, out_channels=16,
        text_dim=WIDTH, freq_dim=256, ffn_dim=32, num_layers=2, cross_attn_norm=True,
        qk_norm="rms_norm_across_heads", rope_max_seq_len=32,
    )  # fmt: skip
    downs = [False, True, True]
    coder = AutoencoderKLWan(base_dim=3, z_dim=16, dim_mult=[1] * 4, num_res_blocks=1, temperal_downsample=downs)
    return WanPipeline(
        tokenizer=tokenizer, text_encoder=t5_text(tokenizer, WIDTH, UMT5EncoderModel, UMT5Config), vae=coder,
        transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
    )  # fmt: skip


def make(kind: str, folder: Path) -> Path:
    """The folder, made unless it is there."""
    if not (folder / "model_index.json").exists():
        torch.manual_seed(0)
        {"sd": sd, "sd3": sd3, "flux": flux, "wan": wan}[kind]().save_pretrained(folder)
    return folder


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
