"""Waits for Redis and for the storage, as long as they are away."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from app.errors import StorageDown, StoreDown
from app.ids import BatchId
from app.telemetry import logger

log = logger(__name__)

_RETRY_S = 1.0
P = ParamSpec("P")
T = TypeVar("T")


async def until_done(batch: BatchId, ask: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Repeats `ask` until it is done, so that nothing of the batch is lost."""
    while True:
        try:
            return await ask(*args, **kwargs)
        except (StoreDown, StorageDown) as exc:
            log.warning("batch_waits", batch=batch, error=exc.message)
        await asyncio.sleep(_RETRY_S)
