"""A model's tokenizer as vLLM, SGLang and TensorRT-LLM load it: with transformers, which converts older formats."""

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from app.errors import SettingsError


def converted(model_dir: Path, special: Sequence[str]) -> tuple[tokenizers.Tokenizer, dict[str, str | None]]:
    """And the texts of its `special` tokens, by their names. Raises: SettingsError."""
    try:
        from transformers import AutoTokenizer
    except ImportError as exc:
        raise SettingsError(f"tokenizer_mode=engine needs the package transformers here ({exc})") from exc
    try:
        found = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        raw = tokenizers.Tokenizer.from_str(found.backend_tokenizer.to_str())
        if raw.get_vocab_size() <= len(found.all_special_tokens):  # without files it makes one of special tokens only
            raise ValueError("no vocabulary")
    except Exception as exc:  # many kinds, of several libraries
        raise SettingsError(f"path={model_dir}: no tokenizer there that transformers can convert ({exc})") from exc
    return raw, {name: getattr(found, name, None) for name in special}
