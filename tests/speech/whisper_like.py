"""The mock's model with Whisper's signs in its tokenizer."""

import json
import shutil
from pathlib import Path

MODEL = Path("app/engines/mock/model")
SIGNS = ["<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>",
         "<|notimestamps|>"]  # fmt: skip
TIMES = [f"<|{tick / 50:.2f}|>" for tick in range(1501)]


def whisper_like(folder: Path, *, multilingual: bool) -> Path:
    shutil.copytree(MODEL, folder)
    spec = json.loads((folder / "tokenizer.json").read_text())
    first = max([*spec["model"]["vocab"].values(), *(token["id"] for token in spec["added_tokens"])]) + 1
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    spec["added_tokens"] += [{"id": first + i, "content": sign, **shape} for i, sign in enumerate([*SIGNS, *TIMES])]
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "generation_config.json").write_text(json.dumps({"is_multilingual": multilingual}))
    config = {"model_type": "mock", "max_target_positions": 448}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
