"""Chooses which of TensorRT-LLM's engines a pool has."""

from app.engines.base import Engine
from app.engines.trtllm.encoder import TrtllmEncoder
from app.engines.trtllm.engine import TrtllmEngine
from app.pools.schema import Pool


def make_engine(pool: Pool, address: str = "127.0.0.1") -> Engine:
    """Raises: SettingsError (bad arguments)."""
    return TrtllmEncoder(pool) if pool.role == "encode" else TrtllmEngine(pool, address)
