"""Compares a LoRA adapter's weights with the model's, for engines that would find out in the middle of a request."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from app.errors import AdapterFailed

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_FACTOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_FLOATS = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}  # else the shape in the file isn't the layer's
_MOST_HEADER = 100 * 2**20  # bytes, as safetensors itself takes


class Tensor(NamedTuple):
    kind: str
    shape: list[int]


def check_adapter(adapter: Path, model: Path, *, factors_only: bool = False) -> list[str]:
    """The layers that it changes. Raises: AdapterFailed where a tensor doesn't fit the model's layer.

    With `factors_only` also where it is anything but both factors of a layer, of one rank. Layers that the model's
    safetensors files don't have, or call something else, are left to the engine.
    """
    try:
        rank = int(json.loads((adapter / _CONFIG).read_bytes())["r"])
        own = _tensors([adapter / _WEIGHTS])
        layers = _tensors(sorted(model.glob("*.safetensors")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise AdapterFailed(f"The adapter's files can't be read: {exc}.") from exc
    sides_by_layer: dict[str, set[str]] = {}
    for name, tensor in own.items():
        factor, shape = _FACTOR.fullmatch(name), tensor.shape
        if factor is not None:
            layer, side = factor.groups()
            sides_by_layer.setdefault(layer, set()).add(side)
            _check_width(name, side, shape, layers.get(f"{layer}.weight"))
        if factors_only and (factor is None or len(shape) != 2 or shape[side == "B"] != rank):
            raise AdapterFailed(f"The adapter's '{name}' is no factor of rank {rank}; it has the shape {shape}.")
    if factors_only and (not sides_by_layer or any(sides != {"A", "B"} for sides in sides_by_layer.values())):
        raise AdapterFailed("The adapter's layers don't have both factors each.")
    return sorted(sides_by_layer)


def _check_width(name: str, side: str, shape: list[int], layer: Tensor | None) -> None:
    if layer is None or layer.kind not in _FLOATS or len(layer.shape) != 2:
        return  # packed, perhaps
    if len(shape) != 2 or shape[side == "A"] != layer.shape[side == "A"]:
        raise AdapterFailed(f"The adapter's '{name}' has the shape {shape}, and the model's layer has {layer.shape}.")


def _tensors(files: Iterable[Path]) -> dict[str, Tensor]:
    """Tensors that the headers of safetensors files list, by name. Raises: OSError, ValueError, KeyError, TypeError."""
    tensors: dict[str, Tensor] = {}
    for path in files:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _MOST_HEADER:
                raise ValueError(f"{path.name} is no safetensors file")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        if path.stat().st_size != 8 + size + max((tensor["data_offsets"][1] for tensor in header.values()), default=0):
            raise ValueError(f"{path.name} is not whole")
        tensors |= {name: Tensor(tensor["dtype"], list(tensor["shape"])) for name, tensor in header.items()}
    return tensors
