"""Finds a model's family, and its numbers, in its files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.errors import SettingsError
from app.media.placeholders.family import PictureFamily, Sounds
from app.media.placeholders.idefics3 import Idefics3
from app.media.placeholders.qwen2_audio import Qwen2Audio
from app.media.placeholders.qwen_vl import QwenVl
from app.media.sound import RATE
from app.tokenizing.tokenizer import Tokenizer

_IDEFICS3, _QWEN_VL = ("idefics3", "smolvlm"), ("qwen2_vl", "qwen2_5_vl")


def pictures_of(model_dir: Path, tokenizer: Tokenizer, fields: Mapping[str, Any]) -> PictureFamily | None:
    """None for a model that has no eyes, or none of these. `fields`: the engine's `mm_processor_kwargs`.

    Raises: SettingsError when the model's files don't say what is needed.
    """
    config = _read(model_dir / "config.json")
    kind = config.get("model_type")
    if kind not in _IDEFICS3 + _QWEN_VL:
        return None
    processor = _read(model_dir / "processor_config.json")
    own = _read(model_dir / "preprocessor_config.json") or processor.get("image_processor", {})
    own = own | dict(fields) | dict(fields.get("images_kwargs", {}))
    try:
        return _idefics3(config, own, processor, tokenizer) if kind in _IDEFICS3 else _qwen_vl(config, own)
    except (KeyError, TypeError, ValueError) as exc:
        raise SettingsError(f"{model_dir}: can't tell how pictures become tokens: {exc!r}") from exc


def sounds_of(model_dir: Path) -> Sounds | None:
    """None for a model that hears nothing in chats, or not in this way. Raises: SettingsError, as `pictures_of`."""
    config = _read(model_dir / "config.json")
    if config.get("model_type") != "qwen2_audio":
        return None
    own = _read(model_dir / "preprocessor_config.json")
    try:
        if int(own.get("sampling_rate", RATE)) != RATE:
            raise ValueError(f"sampling_rate is not {RATE}")
        return Qwen2Audio(
            token_id=int(config["audio_token_index"] if "audio_token_index" in config else config["audio_token_id"]),
            hop=int(own.get("hop_length", 160)),
            most=int(own.get("chunk_length", 30)) * RATE,
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise SettingsError(f"{model_dir}: can't tell how sounds become tokens: {exc!r}") from exc


def _idefics3(config: dict[str, Any], own: dict[str, Any], processor: dict[str, Any], tokenizer: Tokenizer) -> Idefics3:
    return Idefics3(
        tokenizer,
        token_id=int(config["image_token_id"]),
        longest_edge=int(own.get("size", {}).get("longest_edge", 4 * 364)),
        tile=int(own.get("max_image_size", {}).get("longest_edge", 364)),
        tile_tokens=int(processor.get("image_seq_len", 169)),
        splits=bool(own.get("do_image_splitting", True)),
    )


def _qwen_vl(config: dict[str, Any], own: dict[str, Any]) -> QwenVl:
    """The engine takes the patches' sizes from the model, and the pictures' sizes from the processor."""
    vision, size = config["vision_config"], own.get("size") or {}
    least, most = own.get("min_pixels"), own.get("max_pixels")
    return QwenVl(
        token_id=int(config["image_token_id"]),
        patch=int(vision.get("patch_size", 14)),
        merge=int(vision.get("spatial_merge_size", 2)),
        least=int(size.get("shortest_edge", 56 * 56) if least is None else least),
        most=int(size.get("longest_edge", 28 * 28 * 1280) if most is None else most),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise SettingsError(f"{path}: {exc}") from exc
    return content if isinstance(content, dict) else {}
