"""The real model's first layers only: nonsense, but always the same, and computed in a seventh of the time."""

import json
import shutil
from pathlib import Path

from tests.stack import ROOT

_MODEL = ROOT / ".xylem/models/SmolLM2-135M-Instruct"
LAYERS = 4
CLASSES = ("sad", "glad", "neither")
_CALM = 20  # so that no class is certain


def shallow_model(directory: Path) -> Path:
    """Writes it there."""
    from safetensors.torch import load_file, save_file

    weights = load_file(_MODEL / "model.safetensors")
    deep = tuple(f"model.layers.{i}." for i in range(LAYERS, 100))
    kept = {name: weight for name, weight in weights.items() if not name.startswith(deep)}
    made = shutil.copytree(_MODEL, directory, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    save_file(kept, made / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"num_hidden_layers": LAYERS}))
    return made


def shallow_classifier(directory: Path) -> Path:
    """The same layers below a random head, that is always the same and tells three classes. Writes it there."""
    import torch
    from safetensors.torch import load_file, save_file

    made = shallow_model(directory)
    config = json.loads((made / "config.json").read_text())
    head = torch.randn(len(CLASSES), config["hidden_size"], generator=torch.Generator().manual_seed(2)) / _CALM
    weights = load_file(made / "model.safetensors") | {"score.weight": head}
    save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
    classifies = {"architectures": ["LlamaForSequenceClassification"], "id2label": dict(enumerate(CLASSES))}
    (made / "config.json").write_text(json.dumps(config | classifies))
    return made
