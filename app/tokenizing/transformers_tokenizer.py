"""A model's tokenizer as vLLM, SGLang and TensorRT-LLM load it: with transformers, which converts older formats.

transformers is run in a process of its own, without torch, and leaves nothing in an API replica.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from app.errors import SettingsError

_LONGEST_S = 300


def converted(model_dir: Path, special: Sequence[str]) -> tuple[tokenizers.Tokenizer, dict[str, str | None]]:
    """The tokenizer, and the texts of its `special` tokens, by their names. Takes seconds. Raises: SettingsError."""
    argv = [sys.executable, "-m", __name__, str(model_dir), *special]
    try:
        process = subprocess.run(argv, capture_output=True, text=True, timeout=_LONGEST_S, check=True)
    except subprocess.SubprocessError as exc:
        reason = (getattr(exc, "stderr", None) or str(exc)).strip().splitlines()[-1]
        raise SettingsError(f"path={model_dir}: no tokenizer there that transformers can convert ({reason})") from exc
    raw, texts = json.loads(process.stdout)
    return tokenizers.Tokenizer.from_str(raw), texts


def _convert(model_dir: Path, special: Sequence[str]) -> tuple[str, dict[str, str | None]]:
    sys.modules["torch"] = None  # type: ignore[assignment]  # else it is imported, for seconds
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    raw: tokenizers.Tokenizer = tokenizer.backend_tokenizer
    if raw.get_vocab_size() <= len(tokenizer.all_special_tokens):  # without files it makes one of special tokens only
        raise ValueError("there is no vocabulary")
    return raw.to_str(), {name: getattr(tokenizer, name, None) for name in special}


if __name__ == "__main__":
    print(json.dumps(_convert(Path(sys.argv[1]), sys.argv[2:])))  # noqa: T201 (to the parent)
