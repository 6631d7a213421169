"""The pools with the folders of their models, fetched where they are not on this machine."""

import time
from collections.abc import Callable

from app.errors import ModelNotFetched
from app.model_store.source import Part, RemoteModel
from app.model_store.store import ModelStore, Progress
from app.pools.schema import Pool, PoolsFile
from app.settings import Settings
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 10.0
_in_use: list[ModelStore] = []  # until the process ends


def fetched_pools(pools_file: PoolsFile, settings: Settings, part: Part) -> PoolsFile:
    """Blocks. Raises: ModelNotFetched."""
    pools = {name: fetched_pool(pool, settings, part) for name, pool in pools_file.pools.items()}
    return pools_file.model_copy(update={"pools": pools})


def fetched_pool(pool: Pool, settings: Settings, part: Part) -> Pool:
    """Blocks. Its model stays in use until this process ends. Raises: ModelNotFetched."""
    if not isinstance(pool.path, RemoteModel):
        return pool
    store = ModelStore(settings.fetched_models, settings.model_store_bytes)
    _in_use.append(store)
    try:
        folder = store.obtain(pool.path, part, progress=logged(pool.path))
    except ModelNotFetched as exc:
        raise ModelNotFetched(f"path={exc.message}") from exc
    return Pool.model_validate(pool.model_dump(exclude_unset=True) | {"path": folder})


def logged(source: RemoteModel, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Writes a log line every ten seconds."""
    last = clock()

    def progress(count: int, size: int) -> None:
        nonlocal last
        if clock() - last >= _EVERY_S:
            last = clock()
            log.info("fetching_model", source=str(source), bytes=count, of=size)

    return progress
