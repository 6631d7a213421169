"""SGLang, in this process and the ones it starts, on whatever device it finds."""

import os

import torch

# Read when SGLang and huggingface_hub are imported. Models are directories here: nothing is looked up.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if not torch.accelerator.is_available():
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

from app.engines.sglang.engine import SglangEngine

__all__ = ["SglangEngine"]
