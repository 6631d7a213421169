"""Models with eyes, a few MB of random weights: they answer nonsense, always the same, and tell pictures apart."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

_MODELS = Path(__file__).parent.parent / ".xylem/models"
_TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip
# SmolLM2-135M's sizes, for measuring: a prompt costs what it costs there.
_LARGE = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 64,
}  # fmt: skip
_PIXELS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_convert_rgb": True}
_QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_IDEFICS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
_TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}MARKER{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
Kind = Literal["idefics3", "qwen2_vl"]


def random_vlm(kind: Kind, *, weights: bool = True, large: bool = False) -> Path:
    """Made beside the other models, if it isn't there yet. Without `weights`, for the mock: the files about it only.

    `large`: 540 MB instead, and of Idefics3 a square picture has 1,088 picture tokens.
    """
    path = _MODELS / f"random-{kind}{'-large' if large else ''}{'' if weights else '-files'}"
    if not path.exists():
        made = Path(tempfile.mkdtemp(dir=_MODELS))
        _write(kind, made, weights=weights, large=large)
        try:
            os.rename(made, path)  # noqa: PTH104 (fails where another process was faster)
        except OSError:
            shutil.rmtree(made)
    return path


def _write(kind: Kind, made: Path, *, weights: bool, large: bool) -> None:
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(_MODELS / "SmolLM2-135M-Instruct")
    tokenizer.add_special_tokens({"additional_special_tokens": [*(_QWEN if kind == "qwen2_vl" else _IDEFICS)]})
    marker = "".join((_QWEN[0], _QWEN[2], _QWEN[1])) if kind == "qwen2_vl" else "<image>"
    tokenizer.chat_template = _TEMPLATE.replace("MARKER", marker)
    text = (_TEXT | _LARGE if large else _TEXT) | {
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    token = tokenizer.convert_tokens_to_ids
    config, cls, files = _qwen(text, token) if kind == "qwen2_vl" else _idefics(text, token, large)
    if weights:
        torch.manual_seed(0)
        model = cls(config).float()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(made)
    else:
        config.architectures = [cls.__name__]
        config.save_pretrained(made)
    tokenizer.save_pretrained(made)
    for name, content in files.items():
        (made / name).write_text(json.dumps(content))


def _qwen(text: dict[str, Any], token: Any) -> tuple[Any, Any, dict[str, Any]]:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e4}
    vision = {
        "depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "in_chans": 3,
    }  # fmt: skip
    config = Qwen2VLConfig(
        text_config=text | {"rope_parameters": rope},
        vision_config=vision,
        vision_start_token_id=token(_QWEN[0]),
        vision_end_token_id=token(_QWEN[1]),
        image_token_id=token(_QWEN[2]),
        video_token_id=token(_QWEN[3]),
        tie_word_embeddings=True,
    )
    processor = _PIXELS | {
        "image_processor_type": "Qwen2VLImageProcessorPil", "processor_class": "Qwen2VLProcessor", "patch_size": 14,
        "temporal_patch_size": 2, "merge_size": 2, "size": {"shortest_edge": 3136, "longest_edge": 100_352},
    }  # fmt: skip
    return config, Qwen2VLForConditionalGeneration, {"preprocessor_config.json": processor}


def _idefics(text: dict[str, Any], token: Any, large: bool) -> tuple[Any, Any, dict[str, Any]]:
    tile, tiles = (224, 4) if large else (112, 2)  # pixels of a tile's side, and tiles along the picture's longer side
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    vision = {
        "model_type": "idefics3_vision", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": tile, "patch_size": 14,
    }  # fmt: skip
    config = Idefics3Config(
        text_config=text | {"model_type": "llama"},
        vision_config=vision,
        image_token_id=token("<image>"),
        scale_factor=2,
        tie_word_embeddings=True,
    )
    processor = _PIXELS | {
        "image_processor_type": "Idefics3ImageProcessorPil", "processor_class": "Idefics3Processor",
        "do_image_splitting": True, "size": {"longest_edge": tiles * tile}, "max_image_size": {"longest_edge": tile},
        "do_pad": True, "resample": 1,
    }  # fmt: skip
    own = {"processor_class": "Idefics3Processor", "image_seq_len": (tile // 28) ** 2}
    files = {"preprocessor_config.json": processor, "processor_config.json": own}
    return config, Idefics3ForConditionalGeneration, files
