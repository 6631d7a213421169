"""Inference engines behind one protocol. A heavy engine is imported only when it is created."""

from app.engines.base import Engine
from app.pools import Pool


def create_engine(pool: Pool) -> Engine:
    """The pool's engine, not yet started. Raises: SettingsError (unknown engine arguments)."""
    if pool.engine == "vllm":
        from app.engines.vllm import VllmEngine

        return VllmEngine(pool)
    from app.engines.mock.engine import MockEngine

    return MockEngine(pool)
