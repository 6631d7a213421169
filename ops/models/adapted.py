"""LoRA: a random adapter for the layers of attention, or of what a model has instead."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from app.engines.base import Adapters
from ops.models.cell import Cell, right, untried, wrong
from ops.models.loaded import Model, answer, difference, loaded, request, tokens_of
from ops.models.plain import LONG

if TYPE_CHECKING:
    from torch import nn

_RANK, _SCALE = 8, 0.3
# Of layers that adapters are made for, as models call them.
_NAMES = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "query_key_value", "q_a_proj", "q_b_proj", "out_proj"}


async def adapted(model: Model) -> Cell:
    with TemporaryDirectory() as folder_name:
        try:
            write_adapter(Path(folder_name), model.folder)
        except (ValueError, KeyError, AttributeError, ImportError) as exc:
            return untried(f"no adapter can be made for it: transformers says {exc}".splitlines()[0][:120])
        args = {"enable_lora": True, "max_loras": 1, "max_lora_rank": _RANK}
        async with loaded(model, args=args) as it:
            await cast("Adapters", it.engine).add_adapter("one", Path(folder_name))
            with_it = replace(request(LONG), adapter="one")
            base, first = await answer(it.engine, request(LONG)), await answer(it.engine, with_it)
            second = await answer(it.engine, replace(request(LONG), adapter="one"))
            again = await answer(it.engine, request(LONG))
            if tokens_of(first) == tokens_of(base):
                return wrong("the adapter changes nothing")
            mismatch = difference(first, second, it.dtype) or difference(base, again, it.dtype)
            return wrong(mismatch) if mismatch else right()


def write_adapter(made: Path, model: Path) -> None:
    """Raises: ValueError, KeyError, AttributeError, ImportError where transformers can't make the model."""
    import torch
    from safetensors.torch import save_file

    layers, random = _layers(model), torch.Generator().manual_seed(1)
    weights = dict[str, torch.Tensor]()
    for name, layer in layers.items():
        for part, shape in (("A", (_RANK, layer.in_features)), ("B", (layer.out_features, _RANK))):
            weights[f"base_model.model.{name}.lora_{part}.weight"] = torch.randn(shape, generator=random) * _SCALE
    save_file(weights, made / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": _RANK, "lora_alpha": 2 * _RANK, "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}), "base_model_name_or_path": "m",
    }  # fmt: skip
    (made / "adapter_config.json").write_text(json.dumps(config))


def _layers(model: Path) -> "dict[str, nn.Linear]":
    import torch
    from torch import nn
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    layers = {
        name: layer
        for name, layer in whole.named_modules()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in _NAMES
    }
    if not layers:
        raise ValueError("it has no layers of such names")
    return layers
