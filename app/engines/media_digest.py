"""A digest of all that decides what media become in a model's prompts."""

import hashlib
from pathlib import Path

_WEIGHTS = "index.json"


def media_digest(engine: str, text: str, model: Path) -> str:
    """`engine`: its version. `text`: arguments for the processor. `model`: the folder, whose JSON files count."""
    digest = hashlib.sha256(f"{engine}\n{text}".encode())
    for path in sorted(model.glob("*.json")):
        if not path.name.endswith(_WEIGHTS):
            digest.update(f"\n{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:32]
