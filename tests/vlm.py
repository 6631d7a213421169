"""Models with eyes or ears, a few MB of random weights: they answer nonsense, always the same, and tell media apart."""

import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

from app.demo_models.model_folder import prepare

_MODELS = Path(__file__).parent.parent / ".xylem/models"
_WORDS = Path(__file__).parent.parent / "app/engines/mock/model"
_TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip
# SmolLM2-135M's sizes, for measuring: a prompt costs what it costs there.
_LARGE = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 64,
}  # fmt: skip
# A language model with quick steps, and eyes for which a picture is the work of many of them, but few tokens.
_QUICK = {
    "hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 10, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
_LARGE_EYES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8}
_PIXELS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_convert_rgb": True}
_QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_AUDIO = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
_IDEFICS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
_TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] != 'text' %}MARKER{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_TEXTS = {"tiny": {}, "large": _LARGE, "eyes": _QUICK}
Kind = Literal["idefics3", "qwen2_vl", "qwen2_audio"]
Size = Literal["tiny", "large", "eyes"]


def random_vlm(kind: Kind, *, weights: bool = True, size: Size = "tiny") -> Path:
    """Made beside the other models, if it isn't there yet. Without `weights`, for the mock: the files about it only,
    and the mock's own few words, which a process reads in a hundredth of the time.

    Idefics3 has further sizes. `large`: 540 MB, and a square picture has 1,088 picture tokens. `eyes`: 260 MB, and a
    picture of 224 x 224 has 16 picture tokens, for which it computes as long as for many steps of an answer.
    """
    path = _MODELS / f"random-{kind}{'' if size == 'tiny' else f'-{size}'}{'' if weights else '-mock'}"
    prepare(path, partial(_write, kind, weights=weights, size=size))
    return path


def _write(kind: Kind, made: Path, *, weights: bool, size: Size) -> None:
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(_MODELS / "SmolLM2-135M-Instruct" if weights else _WORDS)
    special_tokens = {"idefics3": _IDEFICS, "qwen2_vl": _QWEN, "qwen2_audio": _AUDIO}[kind]
    marker = {
        "idefics3": "<image>",
        "qwen2_vl": "".join((_QWEN[0], _QWEN[2], _QWEN[1])),
        "qwen2_audio": "".join((_AUDIO[1], _AUDIO[0], _AUDIO[2])),
    }[kind]
    tokenizer.add_special_tokens({"additional_special_tokens": [*special_tokens]})
    tokenizer.chat_template = _TEMPLATE.replace("MARKER", marker)
    text = (
        _TEXT
        | _TEXTS[size]
        | {
            "vocab_size": -(-len(tokenizer) // 64) * 64,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
    )
    token = tokenizer.convert_tokens_to_ids
    config, cls, files = {
        "qwen2_vl": _qwen, "qwen2_audio": _qwen_audio, "idefics3": partial(_idefics, size=size),
    }[kind](text, token)  # fmt: skip
    if weights:
        torch.manual_seed(0)
        model = cls(config).float()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(made)
        if kind == "qwen2_audio":
            _rename(made / "model.safetensors")
    else:
        config.architectures = [cls.__name__]
        config.save_pretrained(made)
    tokenizer.save_pretrained(made)
    for name, content in files.items():
        (made / name).write_text(json.dumps(content))


def _rename(path: Path) -> None:
    """Renames tensors to the names that published weights have: transformers 5 writes a level more."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    published_tensors = {
        name.replace("language_model.model.model.", "language_model.model."): t for name, t in tensors.items()
    }
    save_file(published_tensors, path, metadata={"format": "pt"})


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


def _qwen_audio(text: dict[str, Any], token: Any) -> tuple[Any, Any, dict[str, Any]]:
    from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration

    audio = {
        "model_type": "qwen2_audio_encoder", "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2,
        "encoder_ffn_dim": 128, "num_mel_bins": 16, "max_source_positions": 1500,
    }  # fmt: skip
    config = Qwen2AudioConfig(
        text_config=text | {"model_type": "qwen2", "tie_word_embeddings": False},
        audio_config=audio,
        audio_token_index=token(_AUDIO[0]),
    )
    processor = {
        "feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "Qwen2AudioProcessor",
        "feature_size": 16, "sampling_rate": 16_000, "hop_length": 160, "chunk_length": 30, "n_fft": 400,
        "return_attention_mask": True,
    }  # fmt: skip
    return config, Qwen2AudioForConditionalGeneration, {"preprocessor_config.json": processor}


def _idefics(text: dict[str, Any], token: Any, *, size: Size) -> tuple[Any, Any, dict[str, Any]]:
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    # Pixels of a tile's side, tiles along the picture's longer side, and patches that are one token, each way.
    tile, tiles, token_side = {"tiny": (112, 2, 2), "large": (224, 4, 2), "eyes": (224, 1, 4)}[size]

    vision = {
        "model_type": "idefics3_vision", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": tile, "patch_size": 14,
    } | (_LARGE_EYES if size == "eyes" else {})  # fmt: skip
    config = Idefics3Config(
        text_config=text | {"model_type": "llama"},
        vision_config=vision,
        image_token_id=token("<image>"),
        scale_factor=token_side,
        tie_word_embeddings=True,
    )
    processor = _PIXELS | {
        "image_processor_type": "Idefics3ImageProcessorPil", "processor_class": "Idefics3Processor",
        "do_image_splitting": tiles > 1, "size": {"longest_edge": tiles * tile},
        "max_image_size": {"longest_edge": tile}, "do_pad": True, "resample": 1,
    }  # fmt: skip
    own = {"processor_class": "Idefics3Processor", "image_seq_len": (tile // 14 // token_side) ** 2}
    files = {"preprocessor_config.json": processor, "processor_config.json": own}
    return config, Idefics3ForConditionalGeneration, files
