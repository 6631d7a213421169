"""The real model's first layers only: nonsense, but always the same, and computed in a seventh of the time."""

import json
import shutil
from functools import partial
from pathlib import Path

from app.demo_models.model_folder import prepare

_MODELS = Path(__file__).parent.parent / ".xylem/models"
LAYERS = 4
CLASSES = ("sad", "glad", "neither")
_CALM = 20  # so that no class is certain


def shallow_model(deep: Path = _MODELS / "SmolLM2-135M-Instruct") -> Path:
    """Made beside the real one, if it isn't there yet."""
    path = deep.with_name(f"{deep.name}-{LAYERS}-layers")
    prepare(path, partial(_write, deep))
    return path


def _write(deep: Path, made: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(deep / "model.safetensors")
    left_out = tuple(f"model.layers.{i}." for i in range(LAYERS, 100))
    remaining_weights = {name: weight for name, weight in weights.items() if not name.startswith(left_out)}
    shutil.copytree(deep, made, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    save_file(remaining_weights, made / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"num_hidden_layers": LAYERS}))


def shallow_classifier(made: Path) -> Path:
    """Writes these layers with a random head for three classes, always the same one, to the folder."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(shallow_model(), made, dirs_exist_ok=True)
    config = json.loads((made / "config.json").read_text())
    head = torch.randn(len(CLASSES), config["hidden_size"], generator=torch.Generator().manual_seed(2)) / _CALM
    weights = load_file(made / "model.safetensors") | {"score.weight": head}
    save_file(weights, made / "model.safetensors", metadata={"format": "pt"})
    classifies = {"architectures": ["LlamaForSequenceClassification"], "id2label": dict(enumerate(CLASSES))}
    (made / "config.json").write_text(json.dumps(config | classifies))
    return made
