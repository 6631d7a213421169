"""Inference engines behind one protocol. An engine's libraries are imported only when it is created."""

from app.engine_registry import load_engine
from app.engines.base import Disaggregated, Encoder, Engine, PictureEncoder, Transcriber
from app.engines.painter import Painter
from app.errors import SettingsError
from app.pools import Pool


def create_engine(pool: Pool, address: str = "127.0.0.1") -> Engine | Painter:
    """The pool's engine, not yet started; engines on other hosts reach it by `address`.

    Raises: SettingsError (unknown engine arguments, a task that the engine can't do).
    """
    if pool.task == "image":
        painter: Painter = load_engine(pool.engine, paints=True)(pool, address)
        return painter
    engine: Engine = load_engine(pool.engine)(pool, address)
    if pool.task == "transcribe" and not isinstance(engine, Transcriber):
        raise SettingsError(f"task={pool.task}: the engine {pool.engine} does not transcribe")
    if pool.task in ("embed", "classify") and not isinstance(engine, Encoder):
        raise SettingsError(f"task={pool.task}: the engine {pool.engine} only generates")
    if pool.peers and not isinstance(engine, Disaggregated):
        raise SettingsError(f"peers: the engine {pool.engine} hands no KV over")
    if pool.role == "encode" and not isinstance(engine, PictureEncoder):
        raise SettingsError(f"role=encode: the engine {pool.engine} encodes no pictures for others")
    return engine
