"""Weights with which an answer depends on its whole prompt: with vLLM's own dummy ones, models repeat its last token.

vLLM finds the class by its name, `load_format: noise`, in processes that have imported this.
"""

import torch
from torch import nn
from typing_extensions import override
from vllm.config import ModelConfig
from vllm.model_executor.model_loader import DummyModelLoader, register_model_loader

_SPREAD = 150.0  # of vLLM's 0.001


@register_model_loader("noise")
class NoiseLoader(DummyModelLoader):  # type: ignore[misc]  # untyped for us: mypy skips vLLM
    @override
    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        super().load_weights(model, model_config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim > 1 and torch.is_floating_point(weight):
                    weight.mul_(_SPREAD)
                elif "norm" in name and name.endswith("weight"):
                    weight.fill_(1.0)
