"""Creates the engine, or the painter, of a pool."""

from collections.abc import Callable
from functools import partial
from typing import Any

from app.engines.base import Disaggregated, Encoder, Engine, Follower, Node, PictureEncoder, Transcriber
from app.errors import SettingsError
from app.painters.base import Painter
from app.pools.engine_packages import check_engine
from app.pools.engine_registry import load_engine, load_follower
from app.pools.schema import Pool
from app.telemetry import logger

log = logger(__name__)


def create_follower(pool: Pool, node: Node) -> Follower:
    """The part of the pool's engine on this host, not yet started. Raises: SettingsError, as `create_engine`."""
    follower: Follower = _class_of(pool, load_follower)(pool, node)
    return follower


def create_engine(pool: Pool, address: str = "127.0.0.1", node: Node | None = None) -> Engine | Painter:
    """The pool's engine, not yet started; engines on other hosts reach it by `address`.

    `node`: this host's, which leads, if the engine spans several.

    Raises: SettingsError (unknown engine arguments, a task that the engine can't do, a package that is not installed).
    """
    if pool.task == "image":
        painter: Painter = _class_of(pool, partial(load_engine, paints=True))(pool, address)
        return painter
    engine: Engine = _class_of(pool, load_engine)(pool, address, *([] if node is None else [node]))
    if pool.task == "transcribe" and not isinstance(engine, Transcriber):
        raise SettingsError(f"task={pool.task}: the engine {pool.engine} does not transcribe")
    if pool.task in ("embed", "classify") and not isinstance(engine, Encoder):
        raise SettingsError(f"task={pool.task}: the engine {pool.engine} only generates")
    if pool.peers and not isinstance(engine, Disaggregated):
        raise SettingsError(f"peers: the engine {pool.engine} hands no KV over")
    if pool.role == "encode" and not isinstance(engine, PictureEncoder):
        raise SettingsError(f"role=encode: the engine {pool.engine} encodes no pictures for others")
    return engine


def _class_of(pool: Pool, load: Callable[[str], Any]) -> Any:
    """Raises: SettingsError, if a package of the engine is missing, or one that it needs."""
    if sentence := check_engine(pool.engine):
        log.warning("engine_not_tested", reason=sentence)
    try:
        return load(pool.engine)
    except ImportError as exc:
        raise SettingsError(
            f"engine={pool.engine}: its packages can't be imported: {' '.join(str(exc).split())}"
        ) from exc
