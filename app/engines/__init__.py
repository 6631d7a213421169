"""Inference engines behind one protocol. An engine's libraries are imported only when it is created."""

from app.engine_registry import load_engine
from app.engines.base import Encoder, Engine
from app.errors import SettingsError
from app.pools import Pool


def create_engine(pool: Pool, address: str = "127.0.0.1") -> Engine:
    """The pool's engine, not yet started; engines on other hosts reach it by `address`.

    Raises: SettingsError (unknown engine arguments, a task that the engine can't do).
    """
    engine: Engine = load_engine(pool.engine)(pool, address)
    if pool.task != "generate" and not isinstance(engine, Encoder):
        raise SettingsError(f"task={pool.task}: the engine {pool.engine} only generates")
    return engine
