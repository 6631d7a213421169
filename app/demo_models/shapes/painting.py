"""The model that paints, put together: `painter.safetensors` makes a directory in diffusers' format.

A Stable Diffusion pipeline in small: pictures of 64 × 64 pixels, latents of 16 × 16, and a text encoder whose
vocabulary are the words of its prompts (others are read letter by letter, and mean little to it).
"""

import json
from pathlib import Path
from typing import Any

WEIGHTS = Path(__file__).with_name("painter.safetensors")
EDGE = 64  # pixels
PROMPT_TOKENS = 24
STEPS, GUIDANCE = 20, 3.0  # what the quality was measured with
_HIDDEN = 64  # of the text encoder
_PARTS = ("text_encoder", "unet", "vae")


def prepare(dest: Path) -> None:
    """Write the pipeline's directory to `dest`."""
    import torch
    from safetensors import safe_open

    with safe_open(WEIGHTS, "pt") as file:
        notes = file.metadata()
        weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (it is no dict)
    vocabulary, merges = json.loads(notes["vocabulary"]), [tuple(pair) for pair in json.loads(notes["merges"])]
    parts = new_parts(len(vocabulary), float(notes["scaling_factor"]))
    for name in _PARTS:
        part = {key.removeprefix(f"{name}."): t for key, t in weights.items() if key.startswith(f"{name}.")}
        parts[name].load_state_dict(part)
    with torch.no_grad():
        pipeline(parts, tokenizer(vocabulary, merges)).save_pretrained(dest)


def tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    from transformers import CLIPTokenizer

    words = CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=PROMPT_TOKENS)
    words.model_max_length = PROMPT_TOKENS
    return words


def new_parts(vocabulary: int, scaling_factor: float) -> dict[str, Any]:
    """Text encoder, U-Net and autoencoder with random weights."""
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    end = vocabulary - 1
    text = CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=PROMPT_TOKENS,
        bos_token_id=end - 1,
        eos_token_id=end,
        pad_token_id=end,
    )
    unet = UNet2DConditionModel(
        sample_size=EDGE // 4,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64, 80),
        norm_num_groups=8,
        cross_attention_dim=_HIDDEN,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    )
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(16, 32, 48),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        sample_size=EDGE,
        scaling_factor=scaling_factor,
    )
    return {"text_encoder": CLIPTextModel(text), "unet": unet, "vae": vae}


def schedule() -> dict[str, Any]:
    """The noise of training and of painting."""
    return {"num_train_timesteps": 1000, "beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"}


def pipeline(parts: dict[str, Any], words: Any) -> Any:
    from diffusers import DDIMScheduler, StableDiffusionPipeline

    for part in parts.values():
        part.eval()
    return StableDiffusionPipeline(
        **parts,
        tokenizer=words,
        scheduler=DDIMScheduler(**schedule(), clip_sample=False, timestep_spacing="trailing", steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
