"""Inference engines behind one protocol. A heavy engine is imported only when it is created."""

from app.engine_registry import load_engine
from app.engines.base import Engine
from app.pools import Pool


def create_engine(pool: Pool, address: str = "127.0.0.1") -> Engine:
    """The pool's engine, not yet started; engines on other hosts reach it by `address`.

    Raises: SettingsError (unknown engine arguments).
    """
    engine: Engine = load_engine(pool.engine)(pool, address)
    return engine
