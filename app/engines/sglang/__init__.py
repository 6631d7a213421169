"""SGLang, in this process and the ones it starts, on whatever device it finds."""

import os

import torch

# Read when SGLang and huggingface_hub are imported. Models are directories here: nothing is looked up.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if not torch.accelerator.is_available():
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

from app.engines.base import Engine, Node
from app.engines.sglang.encoder import SglangEncoder
from app.engines.sglang.engine import SglangEngine
from app.pools.schema import Pool

__all__ = ["SglangEngine", "make_engine"]


def make_engine(pool: Pool, address: str = "127.0.0.1", node: Node | None = None) -> Engine:
    """Raises: SettingsError (unknown arguments)."""
    return SglangEncoder(pool, address) if pool.role == "encode" else SglangEngine(pool, address, node)
